"""The tables of documents: what is known about each, and its text in a table of its own."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, SmallInteger, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from jobs.database.base import Base, JsonObject, one_of, partial_index
from jobs.database.sealed_columns import SealedBytes, SealedLabel, SealedList
from jobs.ids import uuid7
from jobs.models.turn import EXTRACTION, indexes
from jobs.states.document import DocumentKind, DocumentState


class Document(Base):
    """A document of a tenant. The same bytes of the same kind and encoding are one document.

    `documents.lifecycle` creates and deletes it, a service worker ends its extraction
    (`documents.extraction`).

    Attributes:
        id: UUIDv7.
        tenant_id: the owner.
        sha256: hash of the uploaded bytes, 32 bytes. With `kind` and `encoding` unique among the
            tenant's documents, deleted ones aside.
        kind: a `DocumentKind`, found from the bytes and the name.
        encoding: of its text, as its owner named it; empty if not named, and for kinds that name their own.
        filename: as first uploaded. Empty once deleted.
        num_bytes: size of the upload, at least 1.
        state: a `DocumentState`; `TRANSITIONS` lists the moves.
        file_id: the file that holds the bytes until the extraction ends. Null from then on.
        lease_id: the fence of the worker that extracts the text. Null unless one does.
        lease_expires_at: until when that lease holds; its worker renews it. Null with `lease_id`.
        attempt: attempts at the extraction. `turns` adds one as it takes the document; a failed document that
            is uploaded again starts at 0.
        run_after: not extracted before this. Set after a failure. Null: at once.
        num_pages: pages, slides, sheets or chapters. Null until ready, and for kinds without any.
        pages: character of the text at which each page starts. `[]` without pages.
        num_chars: characters of the text. Null until ready.
        num_tokens: tokens of the text alone, without a template. Null until ready.
        fingerprint: names the tokenizer that counted them. Null until ready.
        language: ISO 639-1. Null until ready, and if it is uncertain.
        title: the document's own title, sealed if content is. Null until ready, if it has none, and once
            deleted; reads as null if no key opens it.
        warnings: `{code, message, pages?}` each, codes from `DocumentWarningCode`; sealed, as they
            name parts of the document. `[]` until ready, and once deleted.
        attachments: `{filename, document_id}` of each file within it that is a document of its own. `[]`
            until ready, and once deleted.
        depth: how many documents it is attached within; 0 if it was uploaded first.
        error: `{code, message}`, codes from `DocumentErrorCode`. Null unless failed.
        created_at: when the bytes were first uploaded.
        finalized_at: when its extraction ended. Null until then.
        expires_at: when the document is deleted, unless a summary needs it. Uploading the same bytes again
            postpones it. Null while its text is extracted.
        deleted_at: when its owner deleted it or it expired. The row stays for the retention. Null before.
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
        partial_index(
            "uq_documents_text",
            "tenant_id",
            "sha256",
            "kind",
            "encoding",
            unique=True,
            where="state <> 'deleted'",
        ),
        Index("ix_documents_tenant", "tenant_id", "id"),
        Index("ix_documents_state", "tenant_id", "state", "id"),
        *indexes(EXTRACTION),
        partial_index("ix_documents_extracting", "tenant_id", "id", where="state = 'extracting'"),
        partial_index("ix_documents_expiring", "expires_at", where="state IN ('failed', 'ready')"),
        partial_index("ix_documents_deleted", "deleted_at", where="state = 'deleted'"),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid7)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"))
    sha256: Mapped[bytes]
    kind: Mapped[str]
    encoding: Mapped[str] = mapped_column(server_default="")
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
    title: Mapped[str | None] = mapped_column(SealedLabel("documents.title"))
    warnings: Mapped[list[JsonObject]] = mapped_column(
        SealedList("documents.warnings"), server_default=text("'[]'")
    )
    attachments: Mapped[list[JsonObject]] = mapped_column(
        SealedList("documents.attachments"), server_default=text("'[]'")
    )
    depth: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    error: Mapped[JsonObject | None] = mapped_column(JSONB(none_as_null=True))
    created_at: Mapped[datetime]
    finalized_at: Mapped[datetime | None]
    expires_at: Mapped[datetime | None]
    deleted_at: Mapped[datetime | None]

    @property
    def has_ended(self) -> bool:
        """True once the text is ready, or never will be."""
        return self.state in (DocumentState.READY, DocumentState.FAILED)


class DocumentText(Base):
    """The text of a document. Written once, when the extraction ends; deleted with the document.

    Attributes:
        document_id: the document.
        tenant_id: the owner.
        body: the text in UTF-8, zstd-compressed, sealed if content is.
    """

    __tablename__ = "document_texts"

    document_id: Mapped[UUID] = mapped_column(
        ForeignKey("documents.id", ondelete="CASCADE"), primary_key=True
    )
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"))
    body: Mapped[bytes] = mapped_column(SealedBytes("document_texts.body"))
