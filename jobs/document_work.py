"""The extraction of a document as the database sees it: claimed under a lease, ended once under it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from uuid import UUID

from sqlalchemy import ColumnElement, Text, cast, func, literal_column, or_, select, update
from sqlalchemy.orm import Session

from jobs import documents
from jobs.database import database_now
from jobs.document_models import Document, DocumentText
from jobs.document_states import DocumentKind, DocumentState, Fault
from jobs.ids import uuid7
from jobs.orm import JsonObject

# A document whose worker was lost so often is given up: it may be what kills them.
MAX_ATTEMPTS: Final = 5
_ABANDONED_FOR: Final = timedelta(days=7)  # so long its owner can see what happened
# Written out, so that the planner sees that the partial index holds them all.
_EXTRACTING: Final[ColumnElement[str]] = literal_column("'extracting'")


@dataclass(frozen=True, slots=True)
class DocumentClaim:
    """A document that is ours to extract.

    Attributes:
        lease_id: the fence of every later write.
        file_id: where its bytes are.
        attempt: 1 for the first.
    """

    document_id: UUID
    tenant_id: UUID
    lease_id: UUID
    file_id: UUID
    kind: DocumentKind
    num_bytes: int
    filename: str
    attempt: int


@dataclass(frozen=True, slots=True)
class ExtractedText:
    """What a document says.

    Attributes:
        body: UTF-8, compressed with zstandard.
        pages: the character at which each page starts; None: the kind has no pages.
        fingerprint: of the tokenizer that counted.
        language: ISO 639-1; None: not sure.
    """

    body: bytes
    num_chars: int
    num_tokens: int
    fingerprint: str
    pages: Sequence[int] | None
    language: str | None
    title: str | None
    warnings: Sequence[JsonObject]


def claim_extraction(session: Session, *, lease: timedelta) -> DocumentClaim | None:
    """A document that waited for its text is under a new lease of ours; None: none waits.

    The oldest one of the tenant that has the fewest under way: a thousand documents of one tenant keep
    another's waiting for one of them at most.
    """
    waits = _waits()
    tenants = session.scalars(
        select(Document.tenant_id)
        .where(Document.state == _EXTRACTING)
        .group_by(Document.tenant_id)
        .having(func.count().filter(waits) > 0)
        .order_by(func.count().filter(~waits), func.min(cast(Document.id, Text)).filter(waits))
    )
    for tenant_id in tenants.all():
        query = (
            select(Document)
            .where(Document.tenant_id == tenant_id, Document.state == _EXTRACTING, waits)
            .order_by(Document.id)
            .limit(1)
            .with_for_update(skip_locked=True)
        )
        while (document := session.scalar(query)) is not None:
            if document.attempt < MAX_ATTEMPTS:
                return _lease(session, document, lease)
            error = error_of(Fault.ABANDONED, "Its extraction was lost with its worker again and again.")
            _end(session, document, DocumentState.FAILED, lifetime=_ABANDONED_FOR, error=error)
    return None


def count_waiting(session: Session) -> int:
    """Documents of all tenants whose text is waited for."""
    waiting = select(func.count()).select_from(Document).where(Document.state == _EXTRACTING)
    return session.scalar(waiting) or 0


def renew(session: Session, lease_ids: Sequence[UUID], *, lease: timedelta) -> set[UUID]:
    """Those of the leases that were still held; they are longer now. The others are lost."""
    renewed = (
        update(Document)
        .where(Document.lease_id.in_(lease_ids), Document.lease_expires_at > func.clock_timestamp())
        .values(lease_expires_at=func.clock_timestamp() + lease)
        .returning(Document.lease_id)
    )
    return {each for each in session.scalars(renewed) if each is not None}


def release(session: Session, claim: DocumentClaim, *, spends_attempt: bool) -> bool:
    """The document waits again; False: the lease was lost."""
    document = _held(session, claim)
    if document is None:
        return False
    document.lease_id = document.lease_expires_at = None
    document.attempt -= not spends_attempt
    session.flush()
    return True


def finish_extraction(
    session: Session, claim: DocumentClaim, text: ExtractedText, *, lifetime: timedelta
) -> bool:
    """The document is ready and its bytes go; False: the lease was lost, and nothing was written."""
    document = _held(session, claim)
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
    _end(session, document, DocumentState.READY, lifetime=lifetime)
    return True


def fail_extraction(
    session: Session, claim: DocumentClaim, error: JsonObject, *, lifetime: timedelta
) -> bool:
    """The document has failed and its bytes go; False: the lease was lost, and nothing was written."""
    document = _held(session, claim)
    if document is None:
        return False
    _end(session, document, DocumentState.FAILED, lifetime=lifetime, error=error)
    return True


def error_of(fault: Fault, message: str) -> JsonObject:
    """A failed document's `error`."""
    return {"code": fault.value, "message": message}


def _waits() -> ColumnElement[bool]:
    return or_(Document.lease_expires_at.is_(None), Document.lease_expires_at <= func.clock_timestamp())


def _lease(session: Session, document: Document, lease: timedelta) -> DocumentClaim:
    now = database_now(session)
    document.lease_id = uuid7()
    document.lease_expires_at = now + lease
    document.attempt += 1
    session.flush()
    if document.file_id is None:
        raise ValueError("a document whose text is waited for has bytes")
    return DocumentClaim(
        document_id=document.id,
        tenant_id=document.tenant_id,
        lease_id=document.lease_id,
        file_id=document.file_id,
        kind=DocumentKind(document.kind),
        num_bytes=document.num_bytes,
        filename=document.filename,
        attempt=document.attempt,
    )


def _held(session: Session, claim: DocumentClaim) -> Document | None:
    """The document, locked, if its lease is still the claim's. One that ran out and nobody took is."""
    query = select(Document).where(
        Document.id == claim.document_id,
        Document.state == DocumentState.EXTRACTING,
        Document.lease_id == claim.lease_id,
    )
    return session.scalar(query.with_for_update())


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
    document.file_id = document.lease_id = document.lease_expires_at = None
    document.finalized_at = now
    document.expires_at = now + lifetime
    session.flush()
    documents.wake_summaries(session, [document.id])
