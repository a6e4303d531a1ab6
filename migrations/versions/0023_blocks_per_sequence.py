"""Blocks that an engine takes for a sequence whatever its length: models with windows or recurrent states.

Expand only: workers of the release before neither read nor write it, and 0 is what they assume.
"""

from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "ALTER TABLE engines ADD COLUMN IF NOT EXISTS blocks_per_sequence integer NOT NULL DEFAULT 0"
        " CONSTRAINT ck_engines_blocks_per_sequence CHECK (blocks_per_sequence >= 0)"
    )


def downgrade() -> None:
    op.drop_column("engines", "blocks_per_sequence", if_exists=True)
