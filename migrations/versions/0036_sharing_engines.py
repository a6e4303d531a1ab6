"""Which engines read a common beginning once, so that forecasts do not count it for each job.

Expand only: a column with a constant default. Workers say it when they register their engine.
"""

from alembic import op

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE engines ADD COLUMN IF NOT EXISTS shares_prefix boolean DEFAULT false NOT NULL")


def downgrade() -> None:
    op.drop_column("engines", "shares_prefix", if_exists=True)
