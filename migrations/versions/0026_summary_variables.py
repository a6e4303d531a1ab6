"""The caller's variables for the chat template, in every prompt of a summary.

Expand only: workers of the release before write and read no such variables.
"""

from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "ALTER TABLE summaries ADD COLUMN IF NOT EXISTS chat_template_kwargs jsonb DEFAULT '{}' NOT NULL"
    )


def downgrade() -> None:
    op.drop_column("summaries", "chat_template_kwargs", if_exists=True)
