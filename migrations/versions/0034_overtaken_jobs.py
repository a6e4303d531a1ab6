"""Which job of a tenant followers overtook, and for how long: a worker that starts anew goes on counting.

Expand only: nullable columns of a table that has one row for each tenant, model and engine.
"""

from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE account_shards ADD COLUMN IF NOT EXISTS overtaken_id uuid")
    op.execute("ALTER TABLE account_shards ADD COLUMN IF NOT EXISTS overtaken_steps double precision")


def downgrade() -> None:
    op.drop_column("account_shards", "overtaken_steps", if_exists=True)
    op.drop_column("account_shards", "overtaken_id", if_exists=True)
