"""Warnings of documents in what is made of them: a result outlives its documents, and its reader sees them.

Expand only: a column with a constant default, which rewrites no row.
"""

from alembic import op

revision = "0074"
down_revision = "0073"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE summaries ADD COLUMN IF NOT EXISTS warnings jsonb DEFAULT '[]' NOT NULL")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE summaries DROP COLUMN IF EXISTS warnings")
