"""Files of tenants: made, written in parts, read in parts, listed, deleted."""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from sqlalchemy import ColumnElement, Select, delete, func, or_, select, update
from sqlalchemy.orm import Session, sessionmaker

from jobs.database import database_now, paging, transaction
from jobs.database.paging import Page, Range
from jobs.errors import ConflictError, NotFoundError, UnavailableError
from jobs.files.storage import PART_BYTES, PartStore, StoredPart
from jobs.files.stray_parts import NAMED_WITHIN, made_at
from jobs.models.batch import Batch
from jobs.models.file import File, FilePart
from jobs.states.batch import BatchState
from jobs.states.file import FileState

INPUT: Final = "batch"
OUTPUT: Final = "batch_output"
# Bytes whose text is waited for: never seen as files.
DOCUMENT: Final = "document"
# Bytes of a deleted file stay so long for whoever is reading them.
_READING: Final = timedelta(minutes=10)
# An upload that takes longer than this was cut off.
_UPLOADING: Final = timedelta(hours=24)
_MAX_PARTS: Final = 64  # small ones, read together


def create(session: Session, *, tenant_id: UUID, purpose: str, filename: str, state: FileState) -> File:
    """An empty file."""
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
    """The part stands in the file from offset `start` on; readers see it once the file's size covers it.

    Raises:
        UnavailableError: the part was put away too long ago: it may be swept as nobody's (see `stray_parts`).
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
    """The lines stand at the end of a file whose writers exclude each other."""
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
) -> File:
    """The file is complete; it can be seen, unless it is a document's.

    Args:
        session: the caller's transaction.
        file_id: of the upload.
        tenant_id: whose it is.
        filename: as it was sent.
        num_bytes: that were stored.
        lifetime: None: as long as somebody needs it.

    Raises:
        NotFoundError: it has been discarded since.
    """
    query = select(File).where(
        File.id == file_id, File.tenant_id == tenant_id, File.state == FileState.UPLOADING
    )
    file = session.scalar(query.with_for_update())
    if file is None:
        raise NotFoundError("the upload took too long and was discarded")
    file.filename = filename
    file.num_bytes = num_bytes
    file.state = FileState.COMPLETE
    file.expires_at = None if lifetime is None else file.created_at + lifetime
    session.flush()
    return file


def complete(session: Session, file_id: UUID, *, now: datetime, lifetime: timedelta) -> None:
    """A file that grew is complete, and its life begins; nothing happens to one that was deleted."""
    session.execute(
        update(File)
        .where(File.id == file_id, File.state == FileState.GROWING)
        .values(state=FileState.COMPLETE, created_at=now, expires_at=now + lifetime)
    )


def get(session: Session, file_id: UUID, *, tenant_id: UUID) -> File:
    """The tenant's file.

    Raises:
        NotFoundError: the tenant has no such file, or not any more.
    """
    file = session.scalar(select(File).where(File.id == file_id, *_visible(tenant_id)))
    if file is None:
        raise NotFoundError("there is no such file")
    return file


def list_files(session: Session, wanted: Range, *, purpose: str | None = None) -> Page[File]:
    """The tenant's files, or those with this purpose.

    Raises:
        InvalidRequestError: the one to go on behind is none of the tenant's files.
    """
    query = select(File).where(*_visible(wanted.tenant_id))
    if purpose is not None:
        query = query.where(File.purpose == purpose)
    return paging.read(session, query, (File.id, File.tenant_id), wanted, kind="file")


def remove(session: Session, file_id: UUID, *, tenant_id: UUID) -> None:
    """The tenant's file is deleted: it can be seen no more, and its bytes go later.

    Raises:
        NotFoundError: the tenant has no such file.
        ConflictError: its batch still writes to it.
    """
    query = select(File).where(File.id == file_id, *_visible(tenant_id)).with_for_update()
    file = session.scalar(query)
    if file is None:
        raise NotFoundError("there is no such file")
    if file.state == FileState.GROWING:
        raise ConflictError("The file is still being written; cancel its batch first.")
    now = database_now(session)  # before the changes: it is a query, and would write the first alone
    file.state = FileState.DELETED
    file.deleted_at = now


def discard(session: Session, file_id: UUID, *, tenant_id: UUID) -> None:
    """An upload that failed leaves nothing."""
    session.execute(
        update(File)
        .where(File.id == file_id, File.tenant_id == tenant_id, File.state == FileState.UPLOADING)
        .values(state=FileState.DELETED, deleted_at=func.clock_timestamp())
    )


def load_parts(
    session: Session, file_id: UUID, *, offset: int, max_bytes: int = PART_BYTES
) -> list[FilePart]:
    """The parts that hold the bytes from `offset` on, one at least, up to `max_bytes`; none at the end."""
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
    """The bytes of consecutive parts from `offset` on, which lies in the first of them."""
    raw = b"".join(store.get(StoredPart(part.num_bytes, part.content, part.key)) for part in parts)
    return raw[offset - parts[0].start :]


def read_chunks(session: Session, file_id: UUID, store: PartStore, *, offset: int = 0) -> Iterator[bytes]:
    """The file's bytes from `offset` on, about a part at a time; parts are let go of once they are read."""
    while parts := load_parts(session, file_id, offset=offset):
        chunk = unpack(parts, store, offset=offset)
        offset += len(chunk)
        for part in parts:
            session.expunge(part)
        yield chunk


def stream_chunks(
    sessions: sessionmaker[Session], file_id: UUID, store: PartStore, *, check: Callable[[], None]
) -> Iterator[bytes]:
    """Read the file's bytes, about a part at a time, with no transaction open between two of them.

    Args:
        sessions: for a short transaction per chunk.
        file_id: of the file.
        store: where its parts are.
        check: called before each chunk; what it raises ends the reading.
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
    """Under which keys the store has the file's bytes."""
    keys = select(FilePart.key).where(FilePart.file_id == file_id, FilePart.key.is_not(None))
    return [key for key in session.scalars(keys) if key is not None]


def truncate(session: Session, file: File) -> None:
    """Empty a growing file, whose row the caller holds; its bytes in the store are gone already."""
    session.execute(delete(FilePart).where(FilePart.file_id == file.id))
    file.num_bytes = 0
    session.flush()


def abandon(session: Session, file_id: UUID) -> None:
    """Delete a file that still grows, as whatever wrote to it has ended; one that is complete stays."""
    session.execute(
        update(File)
        .where(File.id == file_id, File.state == FileState.GROWING)
        .values(state=FileState.DELETED, deleted_at=func.clock_timestamp())
    )


def expire(session: Session, *, now: datetime, limit: int = 500) -> int:
    """Files whose life is over, and uploads that were cut off, are deleted; how many."""
    over = or_(
        (File.state == FileState.COMPLETE) & (File.expires_at <= now),
        (File.state == FileState.UPLOADING) & (File.created_at <= now - _UPLOADING),
    )
    due = session.scalars(select(File.id).where(over).limit(limit).with_for_update(skip_locked=True)).all()
    session.execute(update(File).where(File.id.in_(due)).values(state=FileState.DELETED, deleted_at=now))
    return len(due)


def unread(now: datetime) -> Select[UUID]:
    """Select files that were deleted a while ago, oldest first, unless a batch still needs them."""
    needed = select(Batch.id).where(
        Batch.input_file_id == File.id,
        Batch.state.in_([BatchState.VALIDATING, BatchState.IN_PROGRESS, BatchState.CANCELLING]),
        ~Batch.is_expanded,
    )
    return (
        select(File.id)
        .where(File.state == FileState.DELETED, File.deleted_at <= now - _READING, ~needed.exists())
        .order_by(File.deleted_at)
    )


def prune(session: Session, store: PartStore, *, now: datetime, only: Sequence[UUID] | None = None) -> int:
    """Remove one file that was deleted a while ago, unless a batch still needs it; how many were.

    Args:
        session: the caller's transaction.
        store: where its bytes are.
        now: the database's clock.
        only: one of these; None: of all.
    """
    found = unread(now) if only is None else unread(now).where(File.id.in_(only))
    file_id = session.scalar(found.limit(1).with_for_update(skip_locked=True))
    if file_id is None:
        return 0
    # Before the rows, which alone know them: what is cut off here is done again.
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
