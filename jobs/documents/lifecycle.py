"""Tenants' documents: created once for the same bytes, read, listed, deleted."""

import codecs
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

import zstandard
from sqlalchemy import ColumnElement, delete, func, or_, select, update
from sqlalchemy.orm import Session, defer

from jobs import audit, files, ids, turns
from jobs.audit import Action
from jobs.database import advisory_locks, database_now, paging
from jobs.database.advisory_locks import Lock
from jobs.database.paging import Page, Range
from jobs.database.rows import matches, require
from jobs.database.sealed_columns import has_key, sealer_in
from jobs.errors import NotFoundError
from jobs.models.document import Document, DocumentText
from jobs.models.file import File
from jobs.models.summary import SummaryDocument
from jobs.models.turn import PLANNING
from jobs.sealing.content import StoredChangedError
from jobs.states.document import DocumentKind, DocumentState
from jobs.states.file import FileState

_READ_BYTES: Final = 2**18  # of text, decompressed at a time


@dataclass(frozen=True, slots=True)
class NewDocument:
    """An upload, whose bytes are stored in a file that is still `uploading`.

    Attributes:
        sha256: of the bytes.
        num_bytes: at least one.
        depth: how many documents it is attached within.
        encoding: of its text, as its owner named it; empty if not named.
    """

    file_id: UUID
    sha256: bytes
    num_bytes: int
    kind: DocumentKind
    filename: str
    depth: int = 0
    encoding: str = ""


def create_file(session: Session, *, tenant_id: UUID) -> File:
    """Create an empty file for the bytes of a document; callers never see it."""
    return files.create(
        session, tenant_id=tenant_id, purpose=files.DOCUMENT, filename="", state=FileState.UPLOADING
    )


def finish_upload(
    session: Session, new: NewDocument, *, tenant_id: UUID, lifetime: timedelta
) -> tuple[Document, bool]:
    """Create the document of these bytes, or return the one that exists.

    The same bytes are the same document: an existing one stays as it is and expires `lifetime` from now, and
    the new bytes are discarded. One that failed is extracted again, and so is one whose text no key opens.

    Returns:
        The document; True if its text must now be extracted.

    Raises:
        NotFoundError: the upload took too long, and its bytes are already discarded; upload them again.
    """
    key = f"{tenant_id} {new.sha256.hex()} {new.kind} {new.encoding}"
    advisory_locks.hold(session, Lock.DOCUMENT, of=key)
    known = select(Document).where(
        Document.tenant_id == tenant_id,
        Document.sha256 == new.sha256,
        Document.kind == new.kind,
        Document.encoding == new.encoding,
        Document.state != DocumentState.DELETED,
    )
    document = session.scalar(known.with_for_update())
    now = database_now(session)
    if document is not None and document.state != DocumentState.FAILED and _can_be_read(session, document):
        files.discard(session, file_id=new.file_id, tenant_id=tenant_id)
        if document.state == DocumentState.READY:
            document.expires_at = now + lifetime
        session.flush()
        return document, False
    files.finish_upload(
        session,
        new.file_id,
        tenant_id=tenant_id,
        filename=new.filename,
        num_bytes=new.num_bytes,
        lifetime=None,
    )
    if document is None:
        document = Document(
            tenant_id=tenant_id,
            sha256=new.sha256,
            kind=new.kind,
            encoding=new.encoding,
            filename=new.filename,
            num_bytes=new.num_bytes,
            pages=[],
            warnings=[],
            attachments=[],
            depth=new.depth,
            created_at=now,
        )
        session.add(document)
    if document.state == DocumentState.READY:
        session.execute(delete(DocumentText).where(DocumentText.document_id == document.id))
    document.state = DocumentState.EXTRACTING
    document.file_id = new.file_id
    document.attempt = 0
    document.run_after = None
    document.warnings = []
    document.attachments = []
    document.error = document.finalized_at = document.expires_at = None
    session.flush()
    return document, True


def _can_be_read(session: Session, document: Document) -> bool:
    """Return False if the key is missing that sealed the document's text."""
    has_its_key = select(has_key(DocumentText.body, sealer_in(session)))
    return session.scalar(has_its_key.where(DocumentText.document_id == document.id)) is not False


def get(session: Session, document_id: UUID, *, tenant_id: UUID) -> Document:
    """Get the tenant's document.

    Raises:
        NotFoundError: the tenant has no such document, or no longer has it.
    """
    query = select(Document).where(Document.id == document_id, *visible(tenant_id))
    return require(session, query, kind="document")


def list_documents(session: Session, wanted: Range, *, state: str | None = None) -> Page[Document]:
    """List the tenant's documents, or those in this state, without page maps.

    Raises:
        InvalidRequestError: `wanted.after` is none of the tenant's documents.
    """
    query = select(Document).where(*visible(wanted.tenant_id)).options(defer(Document.pages))
    if state is not None:
        query = query.where(Document.state == state)
    return paging.read(session, query, (Document.id, Document.tenant_id), wanted, kind="document")


def load_body(session: Session, document_id: UUID) -> bytes:
    """Load the stored text of a ready document, for `iterate_text`.

    Raises:
        NotFoundError: the document has no text.
    """
    body = session.scalar(select(DocumentText.body).where(DocumentText.document_id == document_id))
    if body is None:
        raise NotFoundError("The document has no text.")
    return body


def load_text(session: Session, document_id: UUID) -> str:
    """Load the whole text of a ready document of any tenant.

    Raises:
        NotFoundError: the document has no text.
    """
    return "".join(iterate_text(load_body(session, document_id)))


def iterate_text(body: bytes, *, start: int = 0, end: int | None = None) -> Iterator[str]:
    """Yield the text from `start` up to `end` in pieces, never holding all of it.

    Raises:
        StoredChangedError: it is not what was stored.
    """
    at = 0
    for piece in _pieces(body):
        first = max(0, start - at)
        last = len(piece) if end is None else max(0, end - at)
        at += len(piece)
        if wanted := piece[first:last]:
            yield wanted
        if end is not None and at >= end:
            return


def _pieces(body: bytes) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for raw in zstandard.ZstdDecompressor().read_to_iter(body, write_size=_READ_BYTES):
            yield decoder.decode(raw)
    except (zstandard.ZstdError, UnicodeDecodeError) as error:
        raise StoredChangedError from error


# Called before a document is deleted; raises ConflictError if the document is still needed.
Guard = Callable[[Session, UUID], None]


def remove(session: Session, document_id: UUID, *, tenant_id: UUID, guards: Sequence[Guard] = ()) -> None:
    """Delete the tenant's document and its text, even while it is being extracted.

    Raises:
        NotFoundError: the tenant has no such document.
        ConflictError: a guard still needs it.
    """
    query = select(Document).where(Document.id == document_id, *visible(tenant_id)).with_for_update()
    require(session, query, kind="document")
    for guard in guards:
        guard(session, document_id)
    _delete(session, [document_id], now=database_now(session))
    audit.note(session, Action.DOCUMENT_DELETE, ids.document_id(document_id), tenant_id=tenant_id)


def expire(
    session: Session, *, now: datetime, is_needed: ColumnElement[bool] | None = None, limit: int = 100
) -> int:
    """Delete expired documents that are not needed; return their number.

    Args:
        session: the caller's transaction.
        now: by the database's clock.
        is_needed: a condition on `Document` that keeps it, for example while it is summarized.
        limit: the most documents to delete.
    """
    over = [Document.state.in_([DocumentState.READY, DocumentState.FAILED]), Document.expires_at <= now]
    if is_needed is not None:
        over.append(~is_needed)
    query = select(Document.id).where(*over).limit(limit)
    due = session.scalars(query.with_for_update(skip_locked=True)).all()
    _delete(session, due, now=now)
    return len(due)


def prune(session: Session, *, before: datetime, limit: int = 500) -> int:
    """Remove the rows of documents deleted before this moment; return their number."""
    query = select(Document.id).where(Document.state == DocumentState.DELETED, Document.deleted_at < before)
    old = session.scalars(query.limit(limit).with_for_update(skip_locked=True)).all()
    session.execute(delete(Document).where(Document.id.in_(old)))
    return len(old)


def _delete(session: Session, document_ids: Sequence[UUID], *, now: datetime) -> None:
    """Delete documents that the caller has locked; a worker extracting one loses it."""
    which = Document.id.in_(document_ids)
    bytes_of = select(Document.file_id).where(which, Document.file_id.is_not(None))
    drop_files(session, session.scalars(bytes_of).all())
    session.execute(
        update(Document)
        .where(which)
        .values(
            state=DocumentState.DELETED,
            deleted_at=now,
            file_id=None,
            lease_id=None,
            lease_expires_at=None,
            run_after=None,
            filename="",
            title=None,
            warnings=[],
            attachments=[],
        )
    )
    session.execute(delete(DocumentText).where(DocumentText.document_id.in_(document_ids)))
    wake_summaries(session, document_ids)


def wake_summaries(session: Session, document_ids: Sequence[UUID]) -> None:
    """Wake the summaries that wait for these documents, which have ended."""
    query = select(SummaryDocument.summary_id).where(SummaryDocument.document_id.in_(document_ids))
    turns.clear_pause(session, PLANNING, session.scalars(query.distinct()).all())


def drop_files(session: Session, file_ids: Sequence[UUID | None]) -> None:
    """Mark the bytes of these documents for deletion."""
    session.execute(
        update(File)
        .where(File.id.in_([each for each in file_ids if each is not None]))
        .values(state=FileState.DELETED, deleted_at=func.clock_timestamp())
    )


def visible(tenant_id: UUID | None) -> tuple[ColumnElement[bool], ...]:
    """Build a condition: the tenant's documents, or those of all, neither deleted nor expired."""
    return (
        *matches((Document.tenant_id, tenant_id)),
        Document.state != DocumentState.DELETED,
        or_(Document.expires_at.is_(None), Document.expires_at > func.clock_timestamp()),
    )
