"""The extraction of a document in the database: claimed under a lease, ended once under it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from uuid import UUID

from sqlalchemy import ColumnElement, func, literal_column, select
from sqlalchemy.orm import Session

from jobs import documents, ids, turns
from jobs.database import database_now
from jobs.database.base import JsonObject
from jobs.documents import NewDocument
from jobs.models.document import Document, DocumentText
from jobs.models.turn import EXTRACTION
from jobs.states.document import DocumentErrorCode, DocumentKind, DocumentState
from jobs.turns import Turn

MAX_ATTEMPTS: Final = EXTRACTION.max_attempts
_ABANDONED_FOR: Final = timedelta(days=7)  # how long its owner can see the error
# A literal, so that the query planner knows that the partial index covers it.
_EXTRACTING: Final[ColumnElement[str]] = literal_column("'extracting'")


@dataclass(frozen=True, slots=True)
class DocumentClaim:
    """A document claimed for extraction.

    Attributes:
        turn: fences every later write.
        file_id: the file with its bytes.
        depth: how many documents it is attached within; 0 if it was uploaded.
        encoding: of its text, as its owner named it; empty if not named.
    """

    turn: Turn
    file_id: UUID
    kind: DocumentKind
    num_bytes: int
    filename: str
    tenant_id: UUID
    depth: int
    encoding: str = ""

    @property
    def document_id(self) -> UUID:
        """Id of the document."""
        return self.turn.row_id


@dataclass(frozen=True, slots=True)
class ExtractedText:
    """The text of a document and its properties.

    Attributes:
        body: UTF-8, compressed with zstandard.
        fingerprint: of the tokenizer that counted `num_tokens`.
        pages: the character at which each page starts; None if the kind has no pages.
        language: ISO 639-1; None if unsure.
        attached: files within the document whose bytes are stored.
    """

    body: bytes
    num_chars: int
    num_tokens: int
    fingerprint: str
    pages: Sequence[int] | None
    language: str | None
    title: str | None
    warnings: Sequence[JsonObject]
    attached: Sequence[NewDocument] = ()


def begin_extraction(session: Session, turn: Turn) -> DocumentClaim | None:
    """Read what an extraction needs; return None if the document is deleted or lost."""
    document = _lock(session, turn)
    if document is None:
        return None
    if document.file_id is None:
        raise ValueError("a document in extraction has bytes")
    return DocumentClaim(
        turn=turn,
        file_id=document.file_id,
        kind=DocumentKind(document.kind),
        num_bytes=document.num_bytes,
        filename=document.filename,
        tenant_id=document.tenant_id,
        depth=document.depth,
        encoding=document.encoding,
    )


def give_up(session: Session, turn: Turn) -> bool:
    """Fail the document after its last attempt; return False if the lease is lost."""
    error = error_of(DocumentErrorCode.ABANDONED, "Its extraction ended without a result in every attempt.")
    return fail_extraction(session, turn, error, lifetime=_ABANDONED_FOR)


def count_waiting(session: Session) -> int:
    """Count the documents of all tenants that wait for their text."""
    waiting = select(func.count()).select_from(Document).where(Document.state == _EXTRACTING)
    return session.scalar(waiting) or 0


def finish_extraction(
    session: Session, claim: DocumentClaim, text: ExtractedText, *, lifetime: timedelta
) -> bool:
    """Store the text, mark the document ready, drop its bytes and create the documents attached to it.

    Returns:
        False if the lease is lost; nothing is written then.
    """
    document = _lock(session, claim.turn)
    if document is None:
        return False
    session.add(DocumentText(document_id=document.id, tenant_id=document.tenant_id, body=text.body))
    document.num_pages = len(text.pages) if text.pages is not None else None
    document.pages = list(text.pages or [])
    document.num_chars = text.num_chars
    document.num_tokens = text.num_tokens
    document.fingerprint = text.fingerprint
    document.language = text.language
    document.title = text.title
    document.warnings = list(text.warnings)
    children: dict[UUID, str] = {}
    # Locked in one order everywhere: two documents may have the same files attached.
    for new in sorted(text.attached, key=lambda each: each.sha256):
        child, _ = documents.finish_upload(session, new, tenant_id=document.tenant_id, lifetime=lifetime)
        children[new.file_id] = ids.document_id(child.id)
    document.attachments = [
        {"filename": each.filename, "document_id": children[each.file_id]} for each in text.attached
    ]
    _end(session, document, DocumentState.READY, lifetime=lifetime)
    return True


def fail_extraction(session: Session, turn: Turn, error: JsonObject, *, lifetime: timedelta) -> bool:
    """Fail the document and drop its bytes.

    Returns:
        False if the lease is lost; nothing is written then.
    """
    document = _lock(session, turn)
    if document is None:
        return False
    _end(session, document, DocumentState.FAILED, lifetime=lifetime, error=error)
    return True


def error_of(code: DocumentErrorCode, message: str) -> JsonObject:
    """Build the `error` of a failed document."""
    return {"code": code.value, "message": message}


def _lock(session: Session, turn: Turn) -> Document | None:
    """Lock the document; return None if the turn no longer holds its lease.

    A lease that expired but was not claimed again is still the turn's.
    """
    return session.scalar(turns.held(Document, turn).with_for_update())


def _end(
    session: Session,
    document: Document,
    state: DocumentState,
    *,
    lifetime: timedelta,
    error: JsonObject | None = None,
) -> None:
    now = database_now(session)
    documents.drop_files(session, [document.file_id])
    document.state = state
    document.error = error
    document.file_id = document.lease_id = document.lease_expires_at = document.run_after = None
    document.finalized_at = now
    document.expires_at = now + lifetime
    session.flush()
    documents.wake_summaries(session, [document.id])
