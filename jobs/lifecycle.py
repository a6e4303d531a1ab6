"""The verbs of a job from claim to end, in that order, in the caller's transaction.

Every move is one guarded UPDATE, which names the states it may start from and, for a worker's write, the
lease that fences it. Jobs enter through `submission` and leave through `deletion`; `leases` holds what a
worker writes to the jobs it runs.
"""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple
from uuid import UUID

from sqlalchemy import ColumnElement, Select, and_, func, literal_column, or_, select, update
from sqlalchemy.orm import Session

from jobs import audit, finishing, ids, starting, transitions
from jobs.database.rows import require
from jobs.engines import tensor_rows
from jobs.finishing import JobEnd, StoredEnd
from jobs.models import Engine, Job, JsonObject, Reservation
from jobs.sharing import ends as twins
from jobs.starting import UNKNOWN, Claim, Claimant
from jobs.states import TERMINAL, AttemptOutcome, JobState, StopReason
from jobs.transitions import Lease
from jobs.trees import progress as tree_progress


def claim(
    session: Session,
    claims: Sequence[Claim],
    *,
    lease_duration: timedelta,
    engine_name: str,
    claimant: Claimant = UNKNOWN,
) -> list[Claim]:
    """Run queued jobs under these leases, reserve their blocks, and charge their tenants.

    `tick` calls this while it holds the engine's row lock.

    Args:
        session: the caller's transaction.
        claims: of different jobs.
        lease_duration: how long without renewal until they may be rescued.
        engine_name: where they run.
        claimant: the worker that runs them.

    Returns:
        Those of the jobs that run now. The others have changed since, or another engine has them.
    """
    return starting.start_all(
        session, claims, lease_duration=lease_duration, engine_name=engine_name, claimant=claimant
    )


def finish(session: Session, ends: Sequence[JobEnd]) -> dict[UUID, StoredEnd]:
    """Finish these jobs or queue them again, with all that follows from it; see `finishing`.

    Waits for no row of a job. A run's end waits for no tree either. Other ends lock the rows of their
    summaries after those of the jobs, as all code does; and no transaction that holds a summary's row waits
    for a job's row that another can hold.

    Args:
        session: the caller's transaction.
        ends: of different jobs or runs; all of runs, or none.

    Returns:
        What became of each end, by `JobEnd.key`. One that is absent has a locked row or tree: try again
        soon.
    """
    trees = {each.summary_id for each in ends if each.summary_id is not None}
    found = finishing.finish(session, ends, free_trees=tree_progress.lock_free(session, trees))
    for each in ends:
        is_complete = found.states.get(each.key) is JobState.COMPLETED
        if is_complete and each.output is not None and each.output.has_files and each.lease_id is not None:
            tensor_rows.publish(session, each.job_id, each.lease_id)
    has_deliveries = finishing.publish(session, found.followed) | _follow(session, found.followed)
    return {
        key: StoredEnd(state, may_have_deliveries=state is None or has_deliveries)
        for key, state in found.states.items()
    }


def after_end(session: Session, ended: Sequence[Job]) -> None:
    """Do what follows from ends that are no moves: of jobs that were inserted, or counted, and never fit."""
    finishing.record(session, ended)
    _follow(session, ended)


def _follow(session: Session, ended: Sequence[Job]) -> bool:
    tree_progress.advance(session, ended)
    return twins.follow(session, ended)


def fail_unstartable(session: Session, job_ids: Sequence[UUID]) -> None:
    """Fail queued jobs that the database refuses to start; skip those that have changed since."""
    finish(session, [JobEnd(job_id=each, verb="reject", error=_UNSTARTABLE) for each in job_ids])


_UNSTARTABLE: JsonObject = {"code": "internal_error", "message": "The job cannot be started."}


def request_preemption(session: Session, job_ids: Sequence[UUID]) -> int:
    """Ask the workers of these running jobs to release them.

    Skips a job whose end is being recorded right now: its slot is about to be free anyway.

    Returns:
        How many jobs it asked.
    """
    free = select(Job.id).where(Job.id.in_(job_ids)).with_for_update(skip_locked=True)
    return transitions.request_stop(session, StopReason.PREEMPT, [Job.id.in_(session.scalars(free).all())])


def cancel(session: Session, job_id: UUID, *, tenant_id: UUID) -> Job:
    """Cancel the job, or ask its worker to end it; a finished job stays as it is.

    Raises:
        NotFoundError: the tenant has no such job.
    """
    if cancel_where(session, [Job.id == job_id], tenant_id=tenant_id):
        audit.note(session, audit.Action.JOB_CANCEL, ids.job_id(job_id), tenant_id=tenant_id)
    return require(session, select(Job).where(Job.id == job_id, Job.tenant_id == tenant_id), kind="job")


def cancel_where(
    session: Session, conditions: Sequence[ColumnElement[bool]], *, tenant_id: UUID, limit: int = 500
) -> int:
    """Cancel the tenant's unfinished jobs that match, or ask them to stop.

    Skips jobs of a tree that wait for others: they end with their summary. Takes the oldest first. Jobs
    that another transaction is changing come last: it waits for them only when no other is left.

    Args:
        session: the caller's transaction.
        conditions: that the jobs match.
        tenant_id: the jobs' owner.
        limit: jobs at most; many thousands in one transaction would hold up all others.

    Returns:
        How many jobs it reached; 0: none is left.
    """
    # Locked first, in one order: both moves would miss a job that a worker releases between them.
    matching = (
        select(Job.id)
        .where(Job.tenant_id == tenant_id, _is_cancellable(conditions))
        .order_by(Job.id)
        .limit(limit)
    )
    free = session.scalars(matching.with_for_update(key_share=True, skip_locked=True)).all()
    mine = free or session.scalars(matching.with_for_update(key_share=True)).all()
    num_ended = _end_waiting(session, "cancel", mine)
    return num_ended + transitions.request_stop(session, StopReason.CANCEL, [Job.id.in_(mine)])


def count_cancellable(
    session: Session, conditions: Sequence[ColumnElement[bool]], *, tenant_id: UUID, at_most: int
) -> tuple[int, bool]:
    """Count the jobs that `cancel_where` would reach, among some of the tenant's unfinished ones.

    Args:
        session: any transaction that sees the tenant's rows.
        conditions: that the jobs match.
        tenant_id: the jobs' owner.
        at_most: unfinished jobs to look at.

    Returns:
        Their number, and True if all of the tenant's unfinished jobs were looked at.
    """
    matches = _is_cancellable(conditions).label("matches")
    # The conditions are no part of its WHERE, so that it reads no more rows than these.
    some = select(matches).where(Job.tenant_id == tenant_id, Job.finalized_at.is_(None))
    looked_at = some.limit(at_most + 1).subquery()
    number, seen = session.execute(
        select(func.count().filter(looked_at.c.matches), func.count()).select_from(looked_at)
    ).one()
    return min(number, at_most), seen <= at_most


def _is_cancellable(conditions: Sequence[ColumnElement[bool]]) -> ColumnElement[bool]:
    """Match the jobs that match these conditions and can be cancelled, or asked to stop."""
    return and_(
        *conditions,
        Job.state.not_in(sorted(TERMINAL)),
        or_(Job.state != "running", transitions.weaker_than(StopReason.CANCEL)),
        ~tree_progress.is_waiting(),
    )


def overdue(now: datetime) -> Select[UUID]:
    """Select jobs whose window has ended."""
    return select(Job.id).where(
        Job.expires_at <= now,
        Job.state.not_in(sorted(TERMINAL)),
        transitions.weaker_than(StopReason.EXPIRE),
        ~tree_progress.is_waiting(),
    )


def expire(session: Session, *, now: datetime, limit: int = 1000, only: Sequence[UUID] | None = None) -> int:
    """Expire jobs whose window has ended, or ask them to stop if they run.

    Args:
        session: the caller's transaction.
        now: the database's clock.
        limit: jobs at most.
        only: of these jobs; None: of all.

    Returns:
        How many jobs it expired or asked to stop.
    """
    over = overdue(now) if only is None else overdue(now).where(Job.id.in_(only))
    due = session.scalars(over.limit(limit).with_for_update(skip_locked=True)).all()
    num_ended = _end_waiting(session, "expire", due)
    return num_ended + transitions.request_stop(session, StopReason.EXPIRE, [Job.id.in_(due)])


def _end_waiting(session: Session, verb: str, job_ids: Sequence[UUID]) -> int:
    """End those of these jobs that do not run, whose rows the caller holds; return how many ended."""
    return len(finish(session, [JobEnd(job_id=each, verb=verb) for each in job_ids]))


class EndedLeases(NamedTuple):
    """What became of the leases of dead workers.

    Attributes:
        job_ids: of the jobs whose leases have ended.
        are_all: none is left; otherwise others hold the rows, so try again soon.
    """

    job_ids: Sequence[UUID]
    are_all: bool


def end_leases(session: Session, worker_ids: Collection[UUID]) -> EndedLeases:
    """End the leases of these workers now, as their processes have ended; `rescue` need not wait for them.

    Not in one transaction with `rescue`, which locks engines before jobs.
    """
    theirs = (
        select(Job.id)
        .join(Reservation, (Reservation.job_id == Job.id) & (Reservation.lease_id == Job.lease_id))
        .where(Reservation.worker_id.in_(worker_ids))
        .where(Job.state == literal_column("'running'"), Job.lease_expires_at > func.clock_timestamp())
        .order_by(Job.id)
    )
    free = session.scalars(theirs.with_for_update(of=Job, key_share=True, skip_locked=True)).all()
    ended = update(Job).where(Job.id.in_(free)).values(lease_expires_at=func.clock_timestamp())
    session.execute(ended.execution_options(synchronize_session=False))
    return EndedLeases(free, are_all=session.scalar(theirs.limit(1)) is None)


def silent_at(now: datetime) -> Select[UUID]:
    """Select running jobs whose lease has expired: their worker fell silent."""
    is_silent = (Job.state == literal_column("'running'"), Job.lease_expires_at <= now)
    return select(Job.id).where(*is_silent).order_by(Job.id)


def rescue(
    session: Session, *, now: datetime, max_rescues: int, limit: int = 100, only: Sequence[UUID] | None = None
) -> list[Job]:
    """Queue jobs again whose worker fell silent, or end them as requested.

    Spends no attempt. Their reservations drain until the engine is known to be done with them. While it holds
    an engine's row, for which claims wait, it waits for nothing: jobs whose engine, row or tree is locked are
    left for the next call.

    Args:
        session: the caller's transaction.
        now: the database's clock.
        max_rescues: a job that was rescued this often fails.
        limit: jobs at most.
        only: of these jobs; None: of all.
    """
    found = silent_at(now) if only is None else silent_at(now).where(Job.id.in_(only))
    busy = _lock_engines(session, select(Job.engine_name).where(Job.id.in_(found.limit(limit))))
    query = select(Job).where(Job.id.in_(found.limit(limit))).order_by(Job.id)
    is_free = or_(Job.engine_name.is_(None), Job.engine_name.not_in(busy))
    still = query.where(Job.state == literal_column("'running'"), Job.lease_expires_at <= now, is_free)
    silent = session.scalars(still.with_for_update(skip_locked=True)).all()
    ends = [
        lost(Lease(job.id, job.lease_id), WORKER_LOST, max_rescues=max_rescues, summary_id=job.summary_id)
        for job in silent
        if job.lease_id is not None
    ]
    stored = finish(session, ends)
    rescued = [each.job_id for each in ends if each.key in stored]
    return list(session.scalars(select(Job).where(Job.id.in_(rescued)).order_by(Job.id)))


def _lock_engines(session: Session, names: Select[str | None]) -> Sequence[str]:
    """Lock these engines' rows, before any job's: whoever settles several reservations of one holds it.

    Waits for one of them only if none is free.

    Returns:
        Those that others hold.
    """
    wanted = select(Engine.name).where(Engine.name.in_(names)).order_by(Engine.name)
    held = session.scalars(wanted.with_for_update(skip_locked=True)).all()
    if not held:
        held = session.scalars(wanted.limit(1).with_for_update()).all()
    return session.scalars(wanted.where(Engine.name.not_in(held))).all()


def lost(lease: Lease, code: str, *, max_rescues: int, summary_id: UUID | None = None) -> JobEnd:
    """Return the end of a run whose worker or engine was lost.

    It spends no attempt, but records that the job was in flight: it may be what killed them. After
    `max_rescues` it ran alone (see claims), so no other job can have done that, and it fails.
    """
    return JobEnd(
        job_id=lease.job_id,
        lease_id=lease.lease_id,
        verb="rescue",
        outcome=AttemptOutcome.LOST,
        error=_LOST,
        error_code=code,
        limit=max_rescues,
        summary_id=summary_id,
    )


WORKER_LOST: Final = "worker_lost"
_LOST: JsonObject = {
    "code": WORKER_LOST,
    "message": "The worker or engine failed on every run of this job, the last time while it ran alone.",
}
