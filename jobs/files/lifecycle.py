"""Tenants' files: create, write and read in parts, list, delete."""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from sqlalchemy import ColumnElement, Select, delete, func, or_, select, update
from sqlalchemy.orm import Session, sessionmaker

from jobs import audit, ids
from jobs.audit import Action
from jobs.database import database_now, paging, transaction
from jobs.database.paging import Page, Range
from jobs.database.rows import require
from jobs.engines.tensor_rows import INPUT_PURPOSE
from jobs.errors import ConflictError, NotFoundError, UnavailableError
from jobs.files.storage import PART_BYTES, PartStore, StoredPart
from jobs.files.stray_parts import NAMED_WITHIN, made_at
from jobs.models.batch import Batch
from jobs.models.file import File, FilePart
from jobs.states.batch import BatchState
from jobs.states.file import FileState

INPUT: Final = "batch"
OUTPUT: Final = "batch_output"
# What callers may upload as a file.
UPLOADED: Final = (INPUT, INPUT_PURPOSE)
# The source of a document: extracted to text, never listed as a file.
DOCUMENT: Final = "document"
# The bytes of a deleted file stay this long, for requests that are still reading them.
_READING: Final = timedelta(minutes=10)
# An upload that takes longer than this is considered abandoned.
_UPLOADING: Final = timedelta(hours=24)
_MAX_PARTS: Final = 64  # small parts read together


def create(session: Session, *, tenant_id: UUID, purpose: str, filename: str, state: FileState) -> File:
    """Create an empty file."""
    file = File(
        tenant_id=tenant_id,
        purpose=purpose,
        filename=filename,
        state=state,
        num_bytes=0,
        created_at=database_now(session),
    )
    session.add(file)
    session.flush()
    return file


def add_part(session: Session, file_id: UUID, part: StoredPart, *, start: int, tenant_id: UUID) -> None:
    """Add the part to the file at offset `start`.

    Readers see it once the file's size covers it.

    Raises:
        UnavailableError: the part was stored too long ago and may be swept as a stray (see `stray_parts`);
            store it again.
    """
    if part.key is not None and made_at(part.key) < database_now(session) - NAMED_WITHIN:
        raise UnavailableError("The bytes took too long to be stored; try again.")
    session.add(
        FilePart(
            file_id=file_id,
            start=start,
            tenant_id=tenant_id,
            num_bytes=part.num_bytes,
            content=part.content,
            key=part.key,
        )
    )
    session.flush()


def append(session: Session, file: File, lines: Sequence[bytes], store: PartStore) -> None:
    """Append the lines to a file; the caller must exclude other writers."""
    raw = b"".join(lines)
    for begin in range(0, len(raw), PART_BYTES):
        part = store.put(raw[begin : begin + PART_BYTES])
        add_part(session, file.id, part, start=file.num_bytes, tenant_id=file.tenant_id)
        file.num_bytes += part.num_bytes
    session.flush()


def finish_upload(
    session: Session,
    file_id: UUID,
    *,
    tenant_id: UUID,
    filename: str,
    num_bytes: int,
    lifetime: timedelta | None,
    purpose: str | None = None,
) -> File:
    """Complete an upload; the file becomes visible unless it belongs to a document.

    Args:
        session: the caller's transaction.
        file_id: of the upload.
        tenant_id: owner of the file.
        filename: as the client sent it.
        num_bytes: stored in all parts.
        lifetime: from the file's creation; None: until the file is deleted.
        purpose: of the file; None: as it was created.

    Raises:
        NotFoundError: the upload took too long and was discarded; upload again.
    """
    query = select(File).where(
        File.id == file_id, File.tenant_id == tenant_id, File.state == FileState.UPLOADING
    )
    file = session.scalar(query.with_for_update())
    if file is None:
        raise NotFoundError("The upload took too long and was discarded.")
    file.filename = filename
    file.num_bytes = num_bytes
    file.purpose = purpose or file.purpose
    file.state = FileState.COMPLETE
    file.expires_at = None if lifetime is None else file.created_at + lifetime
    session.flush()
    return file


def complete(session: Session, file_id: UUID, *, now: datetime, lifetime: timedelta) -> None:
    """Complete a growing file and start its lifetime; a deleted file stays as it is."""
    session.execute(
        update(File)
        .where(File.id == file_id, File.state == FileState.GROWING)
        .values(state=FileState.COMPLETE, created_at=now, expires_at=now + lifetime)
    )


def get(session: Session, file_id: UUID, *, tenant_id: UUID) -> File:
    """Return the tenant's file.

    Raises:
        NotFoundError: the tenant has no such file, or it was deleted or expired.
    """
    return require(session, select(File).where(File.id == file_id, *_visible(tenant_id)), kind="file")


def list_files(session: Session, wanted: Range, *, purpose: str | None = None) -> Page[File]:
    """List the tenant's files, or only those with this purpose.

    Raises:
        InvalidRequestError: the page starts after a file that is not the tenant's.
    """
    query = select(File).where(*_visible(wanted.tenant_id))
    if purpose is not None:
        query = query.where(File.purpose == purpose)
    return paging.read(session, query, (File.id, File.tenant_id), wanted, kind="file")


def remove(session: Session, file_id: UUID, *, tenant_id: UUID) -> None:
    """Delete the tenant's file: hide it now, remove its bytes later.

    Raises:
        NotFoundError: the tenant has no such file.
        ConflictError: a batch still writes to it; cancel the batch first.
    """
    query = select(File).where(File.id == file_id, *_visible(tenant_id)).with_for_update()
    file = require(session, query, kind="file")
    if file.state == FileState.GROWING:
        raise ConflictError("The file is still being written; cancel its batch first.")
    now = database_now(session)  # before the changes: this query would flush the first one alone
    file.state = FileState.DELETED
    file.deleted_at = now
    audit.note(session, Action.FILE_DELETE, ids.file_id(file_id), tenant_id=tenant_id)


def discard(session: Session, file_id: UUID, *, tenant_id: UUID) -> None:
    """Mark a failed upload as deleted; the next round removes its bytes."""
    session.execute(
        update(File)
        .where(File.id == file_id, File.tenant_id == tenant_id, File.state == FileState.UPLOADING)
        .values(state=FileState.DELETED, deleted_at=func.clock_timestamp())
    )


def load_parts(
    session: Session, file_id: UUID, *, offset: int, max_bytes: int = PART_BYTES
) -> list[FilePart]:
    """Load at least one part from `offset` on, up to `max_bytes`; none at the end."""
    first = (
        select(func.max(FilePart.start))
        .where(FilePart.file_id == file_id, FilePart.start <= offset)
        .scalar_subquery()
    )
    extents = session.execute(
        select(FilePart.start, FilePart.num_bytes)
        .where(FilePart.file_id == file_id, FilePart.start >= first)
        .order_by(FilePart.start)
        .limit(_MAX_PARTS)
    ).all()
    wanted: list[int] = []
    total = 0
    for start, num_bytes in extents:
        if start + num_bytes <= offset:
            continue
        total += num_bytes
        if wanted and total > max_bytes:
            break
        wanted.append(start)
    rows = select(FilePart).where(FilePart.file_id == file_id, FilePart.start.in_(wanted))
    return list(session.scalars(rows.order_by(FilePart.start))) if wanted else []


def unpack(parts: Sequence[FilePart], store: PartStore, *, offset: int) -> bytes:
    """Join consecutive parts from `offset` on, which lies in the first of them."""
    raw = b"".join(store.get(StoredPart(part.num_bytes, part.content, part.key)) for part in parts)
    return raw[offset - parts[0].start :]


def read_chunks(session: Session, file_id: UUID, store: PartStore, *, offset: int = 0) -> Iterator[bytes]:
    """Yield the bytes from `offset` on a part at a time; expunge each part once read."""
    while parts := load_parts(session, file_id, offset=offset):
        chunk = unpack(parts, store, offset=offset)
        offset += len(chunk)
        for part in parts:
            session.expunge(part)
        yield chunk


def stream_chunks(
    sessions: sessionmaker[Session],
    file_id: UUID,
    store: PartStore,
    *,
    check: Callable[[], None] = lambda: None,
) -> Iterator[bytes]:
    """Read the file a part at a time, with no transaction open in between.

    Args:
        sessions: for one short transaction per chunk.
        file_id: of the file.
        store: holds its parts.
        check: called before each chunk; an exception it raises ends the read.
    """
    offset = 0
    while True:
        check()
        with transaction(sessions) as session:
            parts = load_parts(session, file_id, offset=offset)
        if not parts:
            return
        chunk = unpack(parts, store, offset=offset)
        offset += len(chunk)
        yield chunk


def part_keys(session: Session, file_id: UUID) -> list[str]:
    """List the keys of the file's bytes in the store."""
    keys = select(FilePart.key).where(FilePart.file_id == file_id, FilePart.key.is_not(None))
    return [key for key in session.scalars(keys) if key is not None]


def truncate(session: Session, file: File) -> None:
    """Empty a growing file.

    The caller holds the file's row and has already dropped its bytes from the store.
    """
    session.execute(delete(FilePart).where(FilePart.file_id == file.id))
    file.num_bytes = 0
    session.flush()


def abandon(session: Session, file_id: UUID) -> None:
    """Delete a growing file whose writer has ended; a complete file stays."""
    session.execute(
        update(File)
        .where(File.id == file_id, File.state == FileState.GROWING)
        .values(state=FileState.DELETED, deleted_at=func.clock_timestamp())
    )


def expire(session: Session, *, now: datetime, limit: int = 500) -> int:
    """Delete expired files and abandoned uploads, and return how many."""
    over = or_(
        (File.state == FileState.COMPLETE) & (File.expires_at <= now),
        (File.state == FileState.UPLOADING) & (File.created_at <= now - _UPLOADING),
    )
    due = session.scalars(select(File.id).where(over).limit(limit).with_for_update(skip_locked=True)).all()
    session.execute(update(File).where(File.id.in_(due)).values(state=FileState.DELETED, deleted_at=now))
    return len(due)


def unread(now: datetime) -> Select[UUID]:
    """Select files deleted a while ago, oldest first, unless a batch needs them.

    Failed uploads, whose size was never set, go at once: nobody could read them.
    """
    is_unread = or_(File.deleted_at <= now - _READING, File.num_bytes == 0)
    needed = select(Batch.id).where(
        Batch.input_file_id == File.id,
        Batch.state.in_([BatchState.VALIDATING, BatchState.IN_PROGRESS, BatchState.CANCELLING]),
        ~Batch.is_expanded,
    )
    return (
        select(File.id)
        .where(File.state == FileState.DELETED, is_unread, ~needed.exists())
        .order_by(File.deleted_at)
    )


def prune(session: Session, store: PartStore, *, now: datetime, only: Sequence[UUID] | None = None) -> int:
    """Remove one file that was deleted a while ago, and return how many (0 or 1).

    A file that a batch still reads is kept.

    Args:
        session: the caller's transaction.
        store: holds its bytes.
        now: the database's clock.
        only: candidates; None: all files.
    """
    found = unread(now) if only is None else unread(now).where(File.id.in_(only))
    file_id = session.scalar(found.limit(1).with_for_update(skip_locked=True))
    if file_id is None:
        return 0
    # Before the rows, which alone know the keys: if this is interrupted, the next call repeats it.
    store.drop(part_keys(session, file_id))
    session.execute(delete(File).where(File.id == file_id))
    return 1


def _visible(tenant_id: UUID) -> tuple[ColumnElement[bool], ...]:
    return (
        File.tenant_id == tenant_id,
        File.purpose != DOCUMENT,
        File.state.in_([FileState.GROWING, FileState.COMPLETE]),
        or_(File.expires_at.is_(None), File.expires_at > func.clock_timestamp()),
    )
