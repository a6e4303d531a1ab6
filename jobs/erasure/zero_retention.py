"""Zero retention: a tenant's content goes as soon as it was delivered, or was not fetched in time.

What delivers is written once, here and in the routes that call `forget_jobs`, `forget_summary` and
`forget_file`; docs/privacy.md says it to callers. Whatever dies, nothing goes before its delivery is certain,
and what a lost process did not remove goes when its time is over.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import compress
from typing import Final
from uuid import UUID

from sqlalchemy import ColumnElement, Exists, Select, and_, delete, exists, func, or_, select, update
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased

from jobs import deletion, documents, summaries
from jobs.engines.tensor_rows import INPUT_PURPOSE, PURPOSE
from jobs.erasure.parts import Stores, remove_file
from jobs.errors import ConflictError, NotFoundError
from jobs.files import INPUT, OUTPUT
from jobs.models import (
    Batch,
    Document,
    EngineOutput,
    File,
    Job,
    JobTensors,
    Result,
    Summary,
    SummaryNode,
    Tenant,
    WebhookDispatch,
    WebhookEvent,
)
from jobs.states import TERMINAL, JobState
from jobs.states.batch import ACTIVE
from jobs.states.document import DocumentState
from jobs.states.file import FileState
from jobs.states.summary import TERMINAL as ENDED
from jobs.states.summary import Purpose, SummaryState

_LOOKED_AT: Final = 2000  # jobs or events in one transaction, whether or not they can go
_AT_ONCE: Final = 200  # jobs, or results of parts, in one transaction
_UPLOADING: Final = timedelta(hours=1)  # an upload may take longer than its content may stay
_FEW: Final = 20  # documents or summaries


# A tenant, and a moment, as values or as columns.
Of = UUID | InstrumentedAttribute[UUID]
Before = datetime | ColumnElement[datetime]
Conditions = tuple[ColumnElement[bool], ...]


@dataclass(slots=True)
class Walk:
    """How far the search has come, which begins again at its end; None: at the beginning.

    Attributes:
        jobs_after: id of the last job that was looked at.
        events_after: creation of the last event that was looked at.
    """

    jobs_after: UUID | None = None
    events_after: datetime | None = None


def due() -> Select[UUID]:
    """Select the tenants without retention, except those that are being deleted."""
    has_none = Tenant.zero_retention_seconds.is_not(None)
    return select(Tenant.id).where(has_none, Tenant.deleted_at.is_(None)).order_by(Tenant.id)


def tenants(session: Session) -> frozenset[UUID]:
    """Read the tenants without retention."""
    return frozenset(session.scalars(due()))


def find_work(session: Session, tenant_ids: Collection[UUID]) -> dict[UUID, "list[Step]"]:
    """Find which steps may have something to do for these tenants without retention, in one statement.

    Omits tenants of which nothing is left, as of most in most rounds.
    """
    before = func.clock_timestamp() - func.make_interval(0, 0, 0, 0, 0, 0, Tenant.zero_retention_seconds)
    conditions = [condition(Tenant.id, before).correlate(Tenant) for condition in _CONDITIONS.values()]
    rows = session.execute(select(Tenant.id, *conditions).where(Tenant.id.in_(tenant_ids)))
    found = {tenant_id: [*compress(STEPS, has_work)] for tenant_id, *has_work in rows}
    return {tenant_id: steps for tenant_id, steps in found.items() if steps}


def forget_jobs(session: Session, job_ids: Sequence[UUID], *, tenant_id: UUID) -> list[UUID]:
    """Remove those of these jobs that have ended and are alone: their results were delivered.

    Returns:
        The jobs that are gone.
    """
    alone = (Job.batch_id.is_(None), Job.summary_id.is_(None), Job.state.in_(sorted(TERMINAL)))
    found = select(Job).where(Job.id.in_(job_ids), Job.tenant_id == tenant_id, *alone).order_by(Job.id)
    # Waits for a row that another transaction holds: nobody looks at it again before its time is over.
    return _remove_jobs(session, session.scalars(found.with_for_update()).all())


def forget_summary(session: Session, summary_id: UUID, *, tenant_id: UUID, now: datetime) -> None:
    """Hide an ended summary, whose result was delivered; rounds remove it with its jobs."""
    mine = (Summary.id == summary_id, Summary.tenant_id == tenant_id, Summary.deleted_at.is_(None))
    ended = update(Summary).where(*mine, Summary.finalized_at.is_not(None)).values(deleted_at=now)
    session.execute(ended)


def forget_file(session: Session, file_id: UUID, *, tenant_id: UUID, now: datetime) -> None:
    """Hide a file of results that was delivered; rounds remove its bytes."""
    mine = (File.id == file_id, File.tenant_id == tenant_id, File.state == FileState.COMPLETE)
    of_results = File.purpose.in_([OUTPUT, PURPOSE])
    session.execute(update(File).where(*mine, of_results).values(state=FileState.DELETED, deleted_at=now))


def remove_part(
    session: Session, tenant_id: UUID, step: "Step", stores: Stores, walk: Walk, *, now: datetime
) -> int:
    """Remove some content of a tenant without retention that was delivered, or has waited too long.

    Args:
        session: the caller's transaction.
        tenant_id: the tenant.
        step: one of STEPS, each in a transaction of its own: what one cannot remove holds up no other.
        stores: what the tenant has outside of the database.
        walk: of this tenant; it goes on.
        now: the database's clock.

    Returns:
        How many rows lost something.
    """
    tenant = session.get(Tenant, tenant_id)
    if tenant is None or tenant.zero_retention_seconds is None:
        return 0
    over = _Over(tenant_id, now, now - timedelta(seconds=tenant.zero_retention_seconds))
    return step(session, over, stores, walk)


@dataclass(frozen=True, slots=True)
class _Over:
    """Whose content may go, and of when: what ended or came before `before` has waited too long."""

    tenant_id: UUID
    now: datetime
    before: datetime


def _jobs(session: Session, over: _Over, stores: Stores, walk: Walk) -> int:
    """Remove jobs that are alone: delivered by webhook, in a file of results, or of long ago."""
    seen = select(Job.id).where(Job.tenant_id == over.tenant_id).order_by(Job.id).limit(_LOOKED_AT)
    if walk.jobs_after is not None:
        seen = seen.where(Job.id > walk.jobs_after)
    window = session.scalars(seen).all()
    of_batch = Job.batch_id.is_not(None) & Job.is_reported
    is_over = Job.batch_id.is_(None) & ((Job.finalized_at < over.before) | _is_delivered())
    may_go = Job.finalized_at.is_not(None) & Job.summary_id.is_(None) & or_(of_batch, is_over)
    found = select(Job).where(Job.id.in_(window), may_go).order_by(Job.id).limit(_AT_ONCE)
    rows = session.scalars(found.with_for_update(skip_locked=True)).all()
    if len(rows) < _AT_ONCE:  # otherwise more of the window may go
        walk.jobs_after = window[-1] if len(window) == _LOOKED_AT else None
    if rows:
        stores.forget_jobs([row.id for row in rows])
    return len(_remove_jobs(session, rows))


def _is_delivered() -> ColumnElement[bool]:
    """Match jobs all of whose receivers have answered, one of them having got all that there is."""
    of_job = and_(WebhookEvent.job_id == Job.id, WebhookDispatch.event_id == WebhookEvent.id)
    is_open = exists().where(of_job, WebhookDispatch.next_attempt_at.is_not(None))
    is_more = or_(
        Result.reasoning.is_not(None),
        Result.tool_calls.is_not(None),
        Result.log_probs.is_not(None),
        Result.embedding.is_not(None),
    )
    of_event = Result.job_id == WebhookEvent.job_id
    has_result = exists().where(of_event)
    has_more = exists().where(of_event, is_more) | exists().where(EngineOutput.job_id == WebhookEvent.job_id)
    was_whole = WebhookDispatch.includes_output & WebhookEvent.output.is_not(None) & ~has_more
    got = exists().where(
        of_job,
        WebhookDispatch.state == "delivered",
        # Not of a response, which says no more than its id.
        WebhookEvent.type.startswith("job."),
        WebhookEvent.type != "job.started",
        or_(~has_result, was_whole),
    )
    return got & ~is_open


def _remove_jobs(session: Session, rows: Sequence[Job]) -> list[UUID]:
    """Remove ended jobs and what their events say, unless a receiver still waits for that."""
    job_ids = [row.id for row in rows]
    if job_ids:
        deletion.remove_all(session, rows)
        _empty_events(session, WebhookEvent.job_id.in_(job_ids))
    return job_ids


def _empty_events(session: Session, which: ColumnElement[bool]) -> int:
    """Drop what events say that nobody waits for; the log of their deliveries stays."""
    is_open = exists().where(
        WebhookDispatch.event_id == WebhookEvent.id, WebhookDispatch.next_attempt_at.is_not(None)
    )
    said = WebhookEvent.payload.is_not(None) | WebhookEvent.output.is_not(None)
    empty = update(WebhookEvent).where(which, said, ~is_open).values(payload=None, output=None)
    done = session.execute(empty.returning(WebhookEvent.id), execution_options={"synchronize_session": False})
    return len(done.all())


def _events(session: Session, over: _Over, _stores: Stores, walk: Walk) -> int:
    """Empty events whose jobs are gone; those of long ago are not delivered any more."""
    seen = (
        select(WebhookEvent.id, WebhookEvent.created_at, WebhookEvent.job_id)
        .where(*_are_told(over.tenant_id))
        .order_by(WebhookEvent.created_at)
        .limit(_LOOKED_AT)
    )
    if walk.events_after is not None:
        seen = seen.where(WebhookEvent.created_at >= walk.events_after)
    window = session.execute(seen).all()
    walk.events_after = window[-1].created_at if len(window) == _LOOKED_AT else None
    of_jobs = [row for row in window if row.job_id is not None]
    old = [row.id for row in of_jobs if row.created_at < over.before]
    if old:
        waiting = (WebhookDispatch.event_id.in_(old), WebhookDispatch.state == "pending")
        given_up = update(WebhookDispatch).where(*waiting).values(state="failed", next_attempt_at=None)
        session.execute(given_up, execution_options={"synchronize_session": False})
    gone = ~exists().where(Job.id == WebhookEvent.job_id)
    num_emptied = _empty_events(session, WebhookEvent.id.in_([row.id for row in of_jobs]) & gone)
    return num_emptied + _empty_events(session, WebhookEvent.id.in_(old))


def _are_told(of: Of) -> Conditions:
    return WebhookEvent.tenant_id == of, WebhookEvent.payload.is_not(None)


def _joins(session: Session, over: _Over, _stores: Stores, _walk: Walk) -> int:
    """Remove what joins within summaries made, once the join above them has completed.

    What the leaves made is part of the result that the owner gets, and answers and extractions are drawn from
    it: it goes with the whole.
    """
    below, above = aliased(SummaryNode), aliased(SummaryNode)
    open_trees = select(Summary.id).where(*_are_joining(over.tenant_id))
    some = (
        select(Result.job_id)
        .join(below, below.job_id == Result.job_id)
        .join(above, and_(above.summary_id == below.summary_id, above.number == below.parent))
        .join(Job, Job.id == above.job_id)
        .where(below.summary_id.in_(open_trees), below.level > 0, Job.state == JobState.COMPLETED.value)
        .limit(_AT_ONCE)
    )
    gone = delete(Result).where(Result.job_id.in_(session.scalars(some).all()))
    return len(session.execute(gone.returning(Result.job_id)).all())


def _are_joining(of: Of) -> Conditions:
    return (
        Summary.tenant_id == of,
        Summary.purpose == Purpose.SUMMARY.value,
        Summary.finalized_at.is_(None),
        Summary.state == SummaryState.RUNNING.value,
    )


def _summaries(session: Session, over: _Over, _stores: Stores, _walk: Walk) -> int:
    """Hide summaries, answers and extractions that ended long ago; a sweep removes them."""
    old = _are_old_summaries(over.tenant_id, over.before)
    some = session.scalars(select(Summary.id).where(*old).limit(_FEW).with_for_update(skip_locked=True)).all()
    session.execute(update(Summary).where(Summary.id.in_(some)).values(deleted_at=over.now))
    return len(some)


def _are_old_summaries(of: Of, before: Before) -> Conditions:
    return (
        Summary.tenant_id == of,
        Summary.state.in_(sorted(ENDED)),
        Summary.deleted_at.is_(None),
        Summary.finalized_at < before,
    )


def _documents(session: Session, over: _Over, _stores: Stores, _walk: Walk) -> int:
    """Delete documents of long ago that no unfinished summary needs."""
    old = _are_old_documents(over.tenant_id, over.before)
    found = session.scalars(select(Document.id).where(*old).limit(_FEW)).all()
    num_removed = 0
    for document_id in found:
        guards = [summaries.guard_document]
        with suppress(ConflictError, NotFoundError):  # a summary needs it now, or its owner deleted it
            documents.remove(session, document_id, tenant_id=over.tenant_id, guards=guards)
            num_removed += 1
    return num_removed


def _are_old_documents(of: Of, before: Before) -> Conditions:
    return (
        Document.tenant_id == of,
        Document.state.in_([DocumentState.READY, DocumentState.FAILED]),
        Document.finalized_at < before,
        ~summaries.needs_document(),
    )


def _files(session: Session, over: _Over, stores: Stores, _walk: Walk) -> int:
    """Remove a part of one file: a deleted one, one that its batches have read, or one of long ago."""
    one = select(File.id).where(*_are_needless_files(over.tenant_id, over.before)).limit(1)
    file_id = session.scalar(one.with_for_update(skip_locked=True))
    return 0 if file_id is None else remove_file(session, file_id, stores)


def _are_needless_files(of: Of, before: Before) -> Conditions:
    of_file = Batch.input_file_id == File.id
    # `of` may be a column of the tenants that are asked about, not of any tenant.
    was_read = exists().where(of_file, Batch.tenant_id == of).correlate(File, Tenant)
    is_needed = was_read.where(Batch.state.in_(sorted(ACTIVE)))
    of_tensors = exists().where(JobTensors.job_id == Job.id, Job.tenant_id == of, Job.finalized_at.is_(None))
    of_tensors = of_tensors.correlate(Tenant)
    is_old, is_abandoned = File.created_at < before, File.created_at < before - _UPLOADING
    complete = File.state == FileState.COMPLETE
    may_go = or_(
        File.state == FileState.DELETED,
        complete & (File.purpose == INPUT) & or_(was_read, is_old),
        complete & (File.purpose == OUTPUT) & is_old,
        complete & File.purpose.in_([INPUT_PURPOSE, PURPOSE]) & is_old & ~of_tensors,
        (File.state == FileState.UPLOADING) & (File.purpose != PURPOSE) & is_abandoned,
    )
    return File.tenant_id == of, may_go, ~is_needed


Step = Callable[[Session, _Over, Stores, Walk], int]
# Each with the condition without which it would find nothing, by the tenant and the time before which content
# has waited too long; for some also true while what is there may not go yet.
_CONDITIONS: Final[Mapping[Step, Callable[[Of, Before], Exists]]] = {
    _jobs: lambda of, _: exists().where(Job.tenant_id == of, Job.finalized_at.is_not(None)),
    _joins: lambda of, _: exists().where(*_are_joining(of)),
    _summaries: lambda of, before: exists().where(*_are_old_summaries(of, before)),
    _documents: lambda of, before: exists().where(*_are_old_documents(of, before)),
    _files: lambda of, before: exists().where(*_are_needless_files(of, before)),
    _events: lambda of, _: exists().where(*_are_told(of), WebhookEvent.job_id.is_not(None)),
}
STEPS: Final[Sequence[Step]] = tuple(_CONDITIONS)
