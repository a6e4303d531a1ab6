"""What callers do with summaries: create, get, list, cancel, delete; and how they are cleaned up."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from sqlalchemy import ColumnElement, Select, delete, exists, func, insert, or_, select, true
from sqlalchemy.orm import Session

from jobs import audit, documents, lifecycle
from jobs.audit import Action
from jobs.database import database_now, paging
from jobs.database.paging import Page, Range
from jobs.database.rows import matches, require
from jobs.errors import ConflictError, InvalidRequestError
from jobs.models import Job, Summary, SummaryDocument
from jobs.models.document import Document
from jobs.prompts import store
from jobs.states import TERMINAL as ENDED_JOB
from jobs.states import StopReason
from jobs.states.summary import TERMINAL, OnGap, Purpose, Style, SummaryState, SummaryStop
from jobs.summaries import own_templates, stored_templates
from jobs.summaries.own_templates import OwnTemplate
from jobs.summaries.templates import TEMPLATE_VERSIONS
from jobs.trees import progress as tree_progress

# Jobs of a tree deleted in one transaction.
_MAX_JOBS: Final = 500
# What messages call a row, and say of one that has not ended.
_KINDS: Final = {
    Purpose.SUMMARY: "summary",
    Purpose.ANSWERS: "set of answers",
    Purpose.EXTRACTION: "extraction",
}
_NOT_ENDED: Final = {
    Purpose.SUMMARY: "Only a summary that has ended can be deleted; cancel it first.",
    Purpose.ANSWERS: "Only answers that have ended can be deleted; cancel them first.",
    Purpose.EXTRACTION: "Only an extraction that has ended can be deleted; cancel it first.",
}
_NEEDS_DOCUMENT: Final = {
    Purpose.SUMMARY: "A summary of this document has not ended yet; cancel it first.",
    Purpose.ANSWERS: "Answers from this document have not ended yet; cancel them first.",
    Purpose.EXTRACTION: "An extraction from this document has not ended yet; cancel it first.",
}


@dataclass(frozen=True, slots=True)
class SummarySpec:
    """A validated request for summaries.

    Attributes:
        document_ids: each once, in the caller's order.
        combine: True for one summary of all documents, False for one of each.
        length: target length of a summary, in tokens.
        chunk_tokens, overlap_tokens: see `Summary`.
        template: the caller's own, checked; None means ours.
        rank: -1 low, 0 normal, 1 high.
        window: time from acceptance to expiry; None means no expiry.
        webhook_secret: sealed.
    """

    document_ids: Sequence[UUID]
    model: str
    combine: bool = False
    style: Style = Style.PARAGRAPH
    length: int = 400
    language: str | None = None
    instructions: str | None = None
    focus: str | None = None
    chat_template_kwargs: Mapping[str, object] | None = None
    template: OwnTemplate | None = None
    on_gap: OnGap = OnGap.SKIP
    chunk_tokens: int | None = None
    overlap_tokens: int = 0
    rank: int = 0
    custom_id: str | None = None
    metadata: Mapping[str, str] | None = None
    webhook_url: str | None = None
    webhook_secret: bytes | None = None
    window: timedelta | None = None


@dataclass(frozen=True, slots=True)
class SummaryFilter:
    """A filter of a tenant's summaries; fields that are None match everything."""

    state: str | None = None
    custom_id: str | None = None
    document_id: UUID | None = None

    def conditions(self) -> list[ColumnElement[bool]]:
        """Build the SQL conditions."""
        found = matches((Summary.state, self.state), (Summary.custom_id, self.custom_id))
        if self.document_id is not None:
            of = select(SummaryDocument.summary_id).where(SummaryDocument.document_id == self.document_id)
            found.append(Summary.id.in_(of))
        return found


def create(session: Session, spec: SummarySpec, *, tenant_id: UUID) -> list[Summary]:
    """Create summaries that wait to be planned: one, or one per document in order.

    The documents need not be ready. Their rows are locked, so that none is deleted before other transactions
    see that a summary needs it.

    Raises:
        InvalidRequestError: the tenant has no such document, or a variable cannot be set; `param` names it.
    """
    hold_documents(session, spec.document_ids, tenant_id=tenant_id)
    template_id = stored_templates.put(session, spec.template, tenant_id=tenant_id)
    now = database_now(session)
    groups = [spec.document_ids] if spec.combine else [[each] for each in spec.document_ids]
    made = [_new_summary(spec, tenant_id=tenant_id, template_id=template_id, now=now) for _ in groups]
    for summary in made:
        summary.api_key_id = audit.key_of(session)
    session.add_all(made)
    session.flush()
    rows = [
        {"summary_id": summary.id, "position": position, "tenant_id": tenant_id, "document_id": document_id}
        for summary, group in zip(made, groups, strict=True)
        for position, document_id in enumerate(group)
    ]
    session.execute(insert(SummaryDocument), rows)
    return made


def get(
    session: Session, summary_id: UUID, *, tenant_id: UUID, purpose: Purpose = Purpose.SUMMARY
) -> Summary:
    """Get the tenant's summary, or other row of this purpose.

    Raises:
        NotFoundError: the tenant has no such summary.
    """
    query = select(Summary).where(Summary.id == summary_id, *visible(tenant_id, purpose))
    return require(session, query.execution_options(populate_existing=True), kind=_KINDS[purpose])


def list_summaries(
    session: Session, which: SummaryFilter, wanted: Range, *, purpose: Purpose = Purpose.SUMMARY
) -> Page[Summary]:
    """List the tenant's summaries, or other rows of this purpose, that match.

    Raises:
        InvalidRequestError: `wanted.after` is none of the tenant's summaries.
    """
    query = select(Summary).where(*visible(wanted.tenant_id, purpose), *which.conditions())
    return paging.read(session, query, (Summary.id, Summary.tenant_id), wanted, kind=_KINDS[purpose])


def cancel(
    session: Session, summary_id: UUID, *, tenant_id: UUID, purpose: Purpose = Purpose.SUMMARY
) -> Summary:
    """Cancel a summary that is not planned yet, or start to stop one that is running.

    A summary that has ended does not change. `stop_jobs` ends the remaining jobs, in a later transaction.

    Raises:
        NotFoundError: the tenant has no such summary.
    """
    query = select(Summary).where(Summary.id == summary_id, *visible(tenant_id, purpose))
    locked = query.with_for_update(key_share=True).execution_options(populate_existing=True)
    summary = require(session, locked, kind=_KINDS[purpose])
    if summary.state == SummaryState.PREPARING:
        tree_progress.end(session, summary, SummaryState.CANCELLED)
    elif summary.state == SummaryState.RUNNING:
        tree_progress.stop(session, summary, SummaryStop.CANCEL)
    else:
        return summary
    _note(session, "cancel", summary)
    return summary


def stop_jobs(session: Session, summary_id: UUID, *, tenant_id: UUID) -> int:
    """Cancel or stop some jobs of a stopping summary; return how many, 0 at the end."""
    return lifecycle.cancel_where(session, [Job.summary_id == summary_id], tenant_id=tenant_id)


def find_stopping(
    session: Session, *, limit: int = 100, without: Sequence[UUID] = ()
) -> list[tuple[UUID, UUID]]:
    """Find summaries with jobs to stop, and their tenants, except those in `without`."""
    left = exists().where(
        Job.summary_id == Summary.id,
        Job.state.not_in(sorted(ENDED_JOB)),
        or_(Job.state != "running", Job.stop_reason.is_distinct_from(StopReason.CANCEL.value)),
    )
    query = select(Summary.id, Summary.tenant_id).where(
        Summary.finalized_at.is_(None),
        Summary.stop_reason.in_([SummaryStop.CANCEL, SummaryStop.FAIL]),
        Summary.id.not_in(without),
        left,
    )
    return [(row.id, row.tenant_id) for row in session.execute(query.limit(limit))]


def overdue(now: datetime) -> Select[UUID]:
    """Select summaries whose window ended before they were planned.

    Running summaries expire with their jobs, which have the same window.
    """
    return select(Summary.id).where(
        Summary.finalized_at.is_(None), Summary.state == SummaryState.PREPARING, Summary.expires_at <= now
    )


def expire(session: Session, only: Sequence[UUID], *, now: datetime) -> int:
    """Expire those of these summaries that are overdue; return their number."""
    query = select(Summary).where(
        Summary.id.in_(overdue(now).where(Summary.id.in_(only))), Summary.state == SummaryState.PREPARING
    )
    over = session.scalars(query.with_for_update(key_share=True, skip_locked=True)).all()
    for summary in over:
        tree_progress.end(session, summary, SummaryState.EXPIRED)
    return len(over)


def remove(
    session: Session, summary_id: UUID, *, tenant_id: UUID, purpose: Purpose = Purpose.SUMMARY
) -> None:
    """Delete a summary that has ended, and its jobs; its documents stay.

    Hides it from callers at once. `sweep` deletes jobs beyond the first few hundred, so that this call
    returns quickly.

    Raises:
        NotFoundError: the tenant has no such summary.
        ConflictError: it has not ended.
    """
    query = select(Summary).where(Summary.id == summary_id, *visible(tenant_id, purpose))
    summary = require(session, query.with_for_update(), kind=_KINDS[purpose])
    if summary.state not in TERMINAL:
        raise ConflictError(_NOT_ENDED[purpose])
    summary.deleted_at = database_now(session)
    _note(session, "delete", summary)
    session.flush()
    _remove_part(session, summary)


def _note(session: Session, verb: str, summary: Summary) -> None:
    action = Action(f"{summary.purpose}.{verb}")
    audit.note(session, action, summary.public_id, tenant_id=summary.tenant_id)


def sweep(session: Session) -> int:
    """Remove some jobs of a random deleted summary, finally the summary; count rows.

    Random, because a summary that cannot be removed must not hold up all others.
    """
    query = select(Summary).where(Summary.deleted_at.is_not(None)).order_by(func.random()).limit(1)
    summary = session.scalar(query.with_for_update(skip_locked=True))
    return 0 if summary is None else _remove_part(session, summary)


def ended_before(before: datetime) -> Select[UUID]:
    """Select summaries that ended before this moment, oldest first."""
    ended = (Summary.finalized_at.is_not(None), Summary.finalized_at < before)
    return select(Summary.id).where(*ended).order_by(Summary.finalized_at)


def prune(session: Session, *, before: datetime, only: Sequence[UUID] | None = None) -> int:
    """Remove some jobs of one summary that ended before this moment; count the rows.

    Its text lasts as long as the summary: the root goes with the last jobs, and the summary with the root.
    """
    query = (
        select(Summary)
        .where(Summary.finalized_at.is_not(None), Summary.finalized_at < before)
        .where(true() if only is None else Summary.id.in_(only))
        .order_by(Summary.finalized_at)
        .limit(1)
        .with_for_update(skip_locked=True)
    )
    summary = session.scalar(query)
    if summary is None:
        return 0
    return _remove_part(session, summary)


def _remove_part(session: Session, summary: Summary) -> int:
    num_removed = _remove_jobs(session, summary.id)
    if num_removed < _MAX_JOBS:
        session.delete(summary)
        session.flush()
        stored_templates.drop(session, summary.template_id)
    return num_removed or 1


def visible(tenant_id: UUID | None, purpose: Purpose = Purpose.SUMMARY) -> tuple[ColumnElement[bool], ...]:
    """Build a condition: the tenant's rows of this purpose, or those of all, that are not deleted."""
    mine = matches((Summary.tenant_id, tenant_id), (Summary.purpose, purpose.value))
    return (*mine, Summary.deleted_at.is_(None))


def needs_document() -> ColumnElement[bool]:
    """Build a condition on documents: an unfinished summary needs this one."""
    return exists().where(*_OF_DOCUMENT).correlate(Document)


_OF_DOCUMENT: Final = (
    SummaryDocument.document_id == Document.id,
    SummaryDocument.summary_id == Summary.id,
    Summary.finalized_at.is_(None),
)


def guard_document(session: Session, document_id: UUID) -> None:
    """Check that no unfinished summary needs the document; a `documents.Guard`.

    The caller holds a lock on the document's row.

    Raises:
        ConflictError: an unfinished summary needs it.
    """
    needed = select(Summary.purpose).where(Document.id == document_id, *_OF_DOCUMENT)
    purpose = session.scalar(needed.limit(1))
    if purpose is not None:
        raise ConflictError(_NEEDS_DOCUMENT[Purpose(purpose)])


def hold_documents(session: Session, document_ids: Sequence[UUID], *, tenant_id: UUID) -> None:
    """Lock the tenant's documents, so that none is deleted before this transaction ends.

    Raises:
        InvalidRequestError: the tenant has no such document; `param` names it.
    """
    query = (
        select(Document.id)
        .where(Document.id.in_(document_ids), *documents.visible(tenant_id))
        .order_by(Document.id)
        .with_for_update(read=True)
    )
    known = set(session.scalars(query).all())
    for place, document_id in enumerate(document_ids):
        if document_id not in known:
            raise InvalidRequestError("There is no such document.", param=f"documents.{place}")


def _new_summary(spec: SummarySpec, *, tenant_id: UUID, template_id: UUID | None, now: datetime) -> Summary:
    return Summary(
        tenant_id=tenant_id,
        state=SummaryState.PREPARING.value,
        is_combined=spec.combine,
        style=spec.style.value,
        length=spec.length,
        language=spec.language,
        instructions=spec.instructions,
        focus=spec.focus,
        chat_template_kwargs=stored_templates.guarded(spec.chat_template_kwargs, spec.template),
        template_id=template_id,
        on_gap=spec.on_gap.value,
        chunk_tokens=spec.chunk_tokens,
        overlap_tokens=spec.overlap_tokens,
        model=spec.model,
        rank=spec.rank,
        templates=own_templates.versions_of(TEMPLATE_VERSIONS, spec.template),
        gaps=[],
        warnings=[],
        custom_id=spec.custom_id,
        labels=dict(spec.metadata or {}),
        webhook_url=spec.webhook_url,
        webhook_secret=spec.webhook_secret,
        created_at=now,
        expires_at=now + spec.window if spec.window else None,
    )


def _remove_jobs(session: Session, summary_id: UUID) -> int:
    """Delete some jobs of an ended summary and their texts; return the number of jobs."""
    mine = select(Job.id, Job.text_id, Job.guide_id).where(Job.summary_id == summary_id)
    doomed = session.execute(mine.order_by(Job.id).limit(_MAX_JOBS)).all()
    session.execute(delete(Job).where(Job.id.in_([row.id for row in doomed])))
    texts = {each for row in doomed for each in (row.text_id, row.guide_id) if each is not None}
    store.drop_unused(session, sorted(texts))
    return len(doomed)
