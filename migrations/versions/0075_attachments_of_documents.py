"""Attached files of documents, which are documents of their own: mails, portfolios, embedded workbooks.

Expand only: columns with constant defaults, which rewrite no row.
"""

from alembic import op

revision = "0075"
down_revision = "0074"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute(
        "ALTER TABLE documents ADD COLUMN IF NOT EXISTS attachments jsonb DEFAULT '[]' NOT NULL,"
        " ADD COLUMN IF NOT EXISTS depth smallint DEFAULT 0 NOT NULL"
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE documents DROP COLUMN IF EXISTS attachments, DROP COLUMN IF EXISTS depth")
