"""Documents and their texts.

Expand only: the release before does not know the new tables.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_MOMENT = sa.DateTime(timezone=True)
_CHECKS = {
    "state": "state IN ('deleted', 'extracting', 'failed', 'ready')",
    "kind": "kind IN ('docx', 'eml', 'epub', 'html', 'md', 'pdf', 'pptx', 'txt', 'xlsx')",
    "sha256": "octet_length(sha256) = 32",
    "num_bytes": "num_bytes > 0",
    "file_iff_extracting": "(state = 'extracting') = (file_id IS NOT NULL)",
    "lease_whole": "(lease_id IS NULL) = (lease_expires_at IS NULL)",
    "lease_while_extracting": "lease_id IS NULL OR state = 'extracting'",
    "finalized_at": "state = 'deleted' OR (state = 'extracting') = (finalized_at IS NULL)",
    "error": "state = 'deleted' OR (state = 'failed') = (error IS NOT NULL)",
    "ready_whole": "state <> 'ready' OR num_nulls(num_chars, num_tokens, fingerprint) = 0",
    "deleted_at": "(state = 'deleted') = (deleted_at IS NOT NULL)",
}


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_table(
        "documents",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("sha256", sa.LargeBinary(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("filename", sa.Text(), nullable=False),
        sa.Column("num_bytes", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("file_id", sa.Uuid(), nullable=True),
        sa.Column("lease_id", sa.Uuid(), nullable=True),
        sa.Column("lease_expires_at", _MOMENT, nullable=True),
        sa.Column("attempt", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("num_pages", sa.Integer(), nullable=True),
        sa.Column("pages", postgresql.JSONB(), server_default=sa.text("'[]'"), nullable=False),
        sa.Column("num_chars", sa.Integer(), nullable=True),
        sa.Column("num_tokens", sa.Integer(), nullable=True),
        sa.Column("fingerprint", sa.Text(), nullable=True),
        sa.Column("language", sa.Text(), nullable=True),
        sa.Column("title", sa.Text(), nullable=True),
        sa.Column("warnings", postgresql.JSONB(), server_default=sa.text("'[]'"), nullable=False),
        sa.Column("error", postgresql.JSONB(), nullable=True),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("finalized_at", _MOMENT, nullable=True),
        sa.Column("expires_at", _MOMENT, nullable=True),
        sa.Column("deleted_at", _MOMENT, nullable=True),
        *(
            sa.CheckConstraint(condition, name=op.f(f"ck_documents_{name}"))
            for name, condition in _CHECKS.items()
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_documents_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_documents")),
    )
    op.create_index(
        "uq_documents_content",
        "documents",
        ["tenant_id", "sha256", "kind"],
        unique=True,
        postgresql_where=sa.text("state <> 'deleted'"),
    )
    op.create_index("ix_documents_tenant", "documents", ["tenant_id", "id"])
    for name, columns, condition in (
        ("extracting", ["tenant_id", "id"], "state = 'extracting'"),
        ("expiring", ["expires_at"], "state IN ('failed', 'ready')"),
        ("deleted", ["deleted_at"], "state = 'deleted'"),
    ):
        op.create_index(f"ix_documents_{name}", "documents", columns, postgresql_where=sa.text(condition))
    op.create_table(
        "document_texts",
        sa.Column("document_id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["document_id"],
            ["documents.id"],
            name=op.f("fk_document_texts_document_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_document_texts_tenant_id")),
        sa.PrimaryKeyConstraint("document_id", name=op.f("pk_document_texts")),
    )
    # The bytes are compressed already.
    op.execute("ALTER TABLE document_texts ALTER COLUMN body SET STORAGE EXTERNAL")


def downgrade() -> None:
    op.drop_table("document_texts")
    op.drop_table("documents")
    # Bytes that wait to be extracted; the release before would never read them.
    op.execute(
        "UPDATE files SET state = 'deleted', deleted_at = clock_timestamp()"
        " WHERE purpose = 'document' AND state <> 'deleted'"
    )
