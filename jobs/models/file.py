"""The tables of files. Their bytes are parts: in the database, or in a store under a key (see `storage`)."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from jobs.database.base import Base, one_of, partial_index
from jobs.database.sealed_columns import SealedBytes
from jobs.ids import uuid7
from jobs.states.file import FileState


class File(Base):
    """A file of a tenant: an upload, results of a batch, or a document's bytes until its text is extracted.

    `files.lifecycle` writes it and prunes it some minutes after its deletion. Results, and the input of a
    batch that retries another, grow in parts until they are complete.

    Attributes:
        id: UUIDv7.
        tenant_id: the owner.
        purpose: `batch`, `batch_output` for results, `engine_input` and `engine_output` for tensors to
            and from engines, or `document`, which callers never see as a file.
        filename: as uploaded; generated for files that grow. Empty until an upload is complete.
        state: a `FileState`.
        num_bytes: bytes that can be read by now. 0 until an upload is complete.
        created_at: when it was created; for a file that grew, when it was completed.
        expires_at: when it is deleted. Null while it grows or is uploaded, for documents, and for what is
            deleted with its job.
        deleted_at: when it was deleted. Null before. Its bytes stay for some minutes, for requests that read
            them.
    """

    __tablename__ = "files"
    __table_args__ = (
        CheckConstraint(one_of("state", sorted(FileState)), name="state"),
        CheckConstraint("(state = 'deleted') = (deleted_at IS NOT NULL)", name="deleted_at"),
        CheckConstraint("num_bytes >= 0", name="num_bytes"),
        Index("ix_files_tenant", "tenant_id", "id"),
        Index("ix_files_purpose", "tenant_id", "purpose", "id"),
        partial_index("ix_files_expiring", "expires_at", where="state = 'complete'"),
        partial_index("ix_files_deleted", "deleted_at", where="state = 'deleted'"),
        partial_index("ix_files_uploading", "created_at", where="state = 'uploading'"),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid7)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"))
    purpose: Mapped[str]
    filename: Mapped[str]
    state: Mapped[str]
    num_bytes: Mapped[int] = mapped_column(BigInteger, server_default="0")
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    deleted_at: Mapped[datetime | None]


class FilePart(Base):
    """Some bytes of a file. Never changes.

    Attributes:
        file_id: the file. Deleted with it.
        start: offset of its first byte in the file.
        tenant_id: the owner.
        num_bytes: its size, uncompressed, at least 1.
        content: the bytes, zstd-compressed, sealed if content is. Null if the store keeps them.
        key: the store's key for the bytes. Null if `content` has them.
    """

    __tablename__ = "file_parts"
    __table_args__ = (
        CheckConstraint("num_nonnulls(content, key) = 1", name="one_place"),
        CheckConstraint("start >= 0 AND num_bytes > 0", name="extent"),
        partial_index("ix_file_parts_key", "key", where="key IS NOT NULL"),
    )

    file_id: Mapped[UUID] = mapped_column(ForeignKey("files.id", ondelete="CASCADE"), primary_key=True)
    start: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"))
    num_bytes: Mapped[int]
    content: Mapped[bytes | None] = mapped_column(SealedBytes("file_parts.content"))
    key: Mapped[str | None]
