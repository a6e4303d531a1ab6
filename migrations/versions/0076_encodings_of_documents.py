"""Encodings of documents: the same bytes read in another encoding are another document.

A column with a constant default, and the unique index with it. The new index has a new name: the old one is
dropped only after it is built, so at no time can a tenant have the same document twice.
"""

from alembic import op

from migrations import online

revision = "0076"
down_revision = "0075"
branch_labels = None
depends_on = None

_WHERE = "state <> 'deleted'"


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE documents ADD COLUMN IF NOT EXISTS encoding text NOT NULL DEFAULT ''")
    online.create_index(
        "uq_documents_text",
        "documents",
        ["tenant_id", "sha256", "kind", "encoding"],
        where=_WHERE,
        is_unique=True,
    )
    online.drop_index("uq_documents_content", "documents")


def downgrade() -> None:
    """Fail if a tenant has the same bytes in two encodings: delete one of them first."""
    online.create_index(
        "uq_documents_content", "documents", ["tenant_id", "sha256", "kind"], where=_WHERE, is_unique=True
    )
    online.drop_index("uq_documents_text", "documents")
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE documents DROP COLUMN IF EXISTS encoding")
