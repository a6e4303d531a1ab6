"""The tables of documents: what is known about each, and apart from it the text."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, SmallInteger, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from jobs.database.base import Base, JsonObject, one_of
from jobs.ids import uuid7
from jobs.models.turn import EXTRACTION, indexes
from jobs.states.document import DocumentKind, DocumentState


class Document(Base):
    """A document of a tenant; the same bytes are one document.

    Attributes:
        sha256: of the bytes.
        filename: as it was sent first.
        num_bytes: that were sent.
        file_id: where the bytes are until the text is there.
        lease_id, lease_expires_at: of the worker that extracts its text.
        attempt: extractions that were begun.
        run_after: not extracted before this, after a failure.
        num_pages: pages, slides, sheets or chapters; None: the kind has none, or not known yet.
        pages: the character of the text at which each of them starts; [] without pages.
        num_chars: of the text.
        num_tokens: of the text alone, with the tokenizer that `fingerprint` names.
        language: ISO 639-1; None: not sure.
        warnings: `{code, message, pages?}` each, see `Notice`.
        error: `{code, message}`, see `Fault`.
        finalized_at: since when it is ready or has failed.
        expires_at: gone from then on; None while its text is waited for.
    """

    __tablename__ = "documents"
    __table_args__ = (
        CheckConstraint(one_of("state", sorted(DocumentState)), name="state"),
        CheckConstraint(one_of("kind", sorted(DocumentKind)), name="kind"),
        CheckConstraint("octet_length(sha256) = 32", name="sha256"),
        CheckConstraint("num_bytes > 0", name="num_bytes"),
        CheckConstraint("(state = 'extracting') = (file_id IS NOT NULL)", name="file_iff_extracting"),
        CheckConstraint("(lease_id IS NULL) = (lease_expires_at IS NULL)", name="lease_whole"),
        CheckConstraint("lease_id IS NULL OR state = 'extracting'", name="lease_while_extracting"),
        CheckConstraint(
            "state = 'deleted' OR (state = 'extracting') = (finalized_at IS NULL)", name="finalized_at"
        ),
        CheckConstraint("state = 'deleted' OR (state = 'failed') = (error IS NOT NULL)", name="error"),
        CheckConstraint(
            "state <> 'ready' OR num_nulls(num_chars, num_tokens, fingerprint) = 0", name="ready_whole"
        ),
        CheckConstraint("(state = 'deleted') = (deleted_at IS NOT NULL)", name="deleted_at"),
        Index(
            "uq_documents_content",
            "tenant_id",
            "sha256",
            "kind",
            unique=True,
            postgresql_where=text("state <> 'deleted'"),
        ),
        Index("ix_documents_tenant", "tenant_id", "id"),
        Index("ix_documents_state", "tenant_id", "state", "id"),
        *indexes(EXTRACTION),
        Index("ix_documents_extracting", "tenant_id", "id", postgresql_where=text("state = 'extracting'")),
        Index("ix_documents_expiring", "expires_at", postgresql_where=text("state IN ('failed', 'ready')")),
        Index("ix_documents_deleted", "deleted_at", postgresql_where=text("state = 'deleted'")),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid7)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"))
    sha256: Mapped[bytes]
    kind: Mapped[str]
    filename: Mapped[str]
    num_bytes: Mapped[int] = mapped_column(BigInteger)
    state: Mapped[str]
    file_id: Mapped[UUID | None]
    lease_id: Mapped[UUID | None]
    lease_expires_at: Mapped[datetime | None]
    attempt: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    run_after: Mapped[datetime | None]
    num_pages: Mapped[int | None]
    pages: Mapped[list[int]] = mapped_column(JSONB, server_default=text("'[]'"))
    num_chars: Mapped[int | None]
    num_tokens: Mapped[int | None]
    fingerprint: Mapped[str | None]
    language: Mapped[str | None]
    title: Mapped[str | None]
    warnings: Mapped[list[JsonObject]] = mapped_column(JSONB, server_default=text("'[]'"))
    error: Mapped[JsonObject | None] = mapped_column(JSONB(none_as_null=True))
    created_at: Mapped[datetime]
    finalized_at: Mapped[datetime | None]
    expires_at: Mapped[datetime | None]
    deleted_at: Mapped[datetime | None]

    @property
    def has_ended(self) -> bool:
        """Whether its text is there, or never will be."""
        return self.state in (DocumentState.READY, DocumentState.FAILED)


class DocumentText(Base):
    """The text of a document; written once.

    Attributes:
        body: UTF-8, compressed with zstandard.
    """

    __tablename__ = "document_texts"

    document_id: Mapped[UUID] = mapped_column(
        ForeignKey("documents.id", ondelete="CASCADE"), primary_key=True
    )
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"))
    body: Mapped[bytes]
