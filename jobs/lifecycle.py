"""The verbs of a job from claim to end, in that order, in the caller's transaction.

Every move is one guarded UPDATE, see `transitions`. Verbs that a worker calls return the job's new state, or
None if the lease is lost; then they write nothing. Jobs enter through `submission` and leave through
`deletion`; `leases` holds what a worker writes to the jobs it runs.
"""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple
from uuid import UUID

from sqlalchemy import ColumnElement, Select, and_, func, literal_column, or_, select, update
from sqlalchemy.orm import Session

from jobs import audit, checkpoints, completing, ids, job_rows, starting, transitions
from jobs.checkpoints import Output
from jobs.completing import Completed, JobCompletion
from jobs.database.rows import require
from jobs.engines import attempts, reservations
from jobs.errors import EngineLostError
from jobs.models import Engine, Job, JsonObject, Reservation
from jobs.starting import UNKNOWN, Claim, Claimant
from jobs.states import TERMINAL, AttemptOutcome, FinishReason, JobState, StopReason
from jobs.transitions import Lease, RunOutcome
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


def fail_unstartable(session: Session, job_ids: Sequence[UUID]) -> list[Job]:
    """Fail queued jobs that the database refuses to start.

    Returns:
        Those that failed. The others have changed since.
    """
    return transitions.end(
        session, "reject", Job.id.in_(job_ids), Job.state == literal_column("'queued'"), error=_UNSTARTABLE
    )


_UNSTARTABLE: JsonObject = {"code": "internal_error", "message": "The job cannot be started."}


def report_progress(
    session: Session, lease: Lease, *, completion_tokens: int, since_first_token: timedelta = timedelta(0)
) -> bool:
    """Publish how many tokens have streamed, and when the first one came.

    Returns:
        False if the lease is lost.
    """
    return bool(
        transitions.write(
            session,
            lease,
            completion_tokens=func.least(completion_tokens, Job.max_tokens),
            first_token_at=func.coalesce(Job.first_token_at, func.clock_timestamp() - since_first_token),
        )
    )


def complete(session: Session, lease: Lease, output: Output, finish_reason: FinishReason) -> JobState | None:
    """Complete the job with its result and event."""
    return transitions.finish(session, "complete", lease, output, finish_reason=finish_reason.value)


def complete_all(session: Session, completions: Sequence[JobCompletion]) -> Completed:
    """Complete many jobs with their results and events in one statement, and close reservations.

    Of the others, some leases are lost and some rows are locked; `complete` tells. The caller holds the
    engine's row.
    """
    return completing.complete_all(session, completions) if completions else Completed()


def fail(session: Session, lease: Lease, error: JsonObject, output: Output | None = None) -> JobState | None:
    """Fail the job for good and keep its partial output."""
    return transitions.finish(session, "fail", lease, output, error=error)


def finish_stopped(
    session: Session, lease: Lease, reason: StopReason, output: Output | None
) -> JobState | None:
    """Cancel or expire a running job as requested."""
    return transitions.finish(session, transitions.ENDS[reason], lease, output)


def release(
    session: Session,
    lease: Lease,
    output: Output | None = None,
    *,
    wait: timedelta = timedelta(0),
    error_code: str | None = None,
) -> JobState | None:
    """Queue the job again with its rank, or end it if a request asked for that.

    Spends no attempt. The job is not claimed again before `wait` is over. `error_code` says why its engine
    did not take it.
    """
    later = {"run_after": func.clock_timestamp() + wait} if wait else {}
    run = RunOutcome(AttemptOutcome.RELEASED, error_code)
    return transitions.requeue(session, "release", lease, output, run=run, **later)


def yield_slot(session: Session, lease: Lease, output: Output) -> JobState | None:
    """Release the job so that others can go on.

    The next time, it reserves all that it may need, so that it never has to yield again.
    """
    run = RunOutcome(AttemptOutcome.YIELDED)
    return transitions.requeue(session, "release", lease, output, run=run, num_yields=Job.num_yields + 1)


def release_preempted(session: Session, lease: Lease, output: Output) -> JobState | None:
    """Release the job for the interactive lane; counted, so that this has a limit."""
    run, counted = RunOutcome(AttemptOutcome.PREEMPTED), Job.num_preemptions + 1
    return transitions.requeue(session, "release", lease, output, run=run, num_preemptions=counted)


def request_preemption(session: Session, job_ids: Sequence[UUID]) -> int:
    """Ask the workers of these running jobs to release them.

    Skips a job whose end is being recorded right now: its slot is about to be free anyway.

    Returns:
        How many jobs it asked.
    """
    free = select(Job.id).where(Job.id.in_(job_ids)).with_for_update(skip_locked=True)
    return transitions.request_stop(session, StopReason.PREEMPT, [Job.id.in_(session.scalars(free).all())])


def recount(session: Session, lease: Lease, *, prompt_tokens: int) -> JobState | None:
    """Release the job with the length that its prompt really has.

    If another tokenizer counted it, the worker would otherwise send more tokens than it reserved blocks for.
    """
    counted = {"prompt_tokens": prompt_tokens, "reserved_tokens": prompt_tokens + Job.max_tokens}
    run = RunOutcome(AttemptOutcome.RECOUNTED)
    return transitions.requeue(
        session, "release", lease, None, run=run, **counted, cached_tokens=None, family=None
    )


def retry(
    session: Session,
    lease: Lease,
    error: JsonObject,
    *,
    max_attempts: int,
    backoff: timedelta,
    output: Output | None = None,
) -> JobState | None:
    """Spend an attempt: queue the job for later, or fail it after its last one.

    Ends the job instead if a request asked for that. A failed job keeps its partial output.
    """
    job = session.scalar(
        select(Job).where(*transitions.fence(lease), Job.state == "running").with_for_update()
    )
    if job is None:
        return None
    spent = job.attempt + 1
    if spent >= max_attempts:
        return transitions.finish(session, "fail", lease, output, error=error, attempt=spent)
    later = func.clock_timestamp() + backoff * 2 ** (spent - 1)
    run = RunOutcome(AttemptOutcome.RETRIED, str(error["code"]))
    return transitions.requeue(session, "retry", lease, output, run=run, attempt=spent, run_after=later)


def release_after_engine_loss(session: Session, lease: Lease, *, max_rescues: int) -> JobState | None:
    """Queue the job again, as after a rescue, because its engine was lost.

    Spends no attempt, but records that the job was in flight: it may be what killed the engine.
    """
    job = session.scalar(
        select(Job).where(*transitions.fence(lease), Job.state == "running").with_for_update()
    )
    return _rescue_one(session, job, max_rescues=max_rescues, lost=EngineLostError.code) if job else None


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
    ended = transitions.end(session, "cancel", Job.id.in_(mine), Job.state != "running")
    return len(ended) + transitions.request_stop(session, StopReason.CANCEL, [Job.id.in_(mine)])


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
    ended = transitions.end(session, "expire", Job.id.in_(due), Job.state != "running")
    return len(ended) + transitions.request_stop(session, StopReason.EXPIRE, [Job.id.in_(due)])


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
    free = tree_progress.lock_free(session, {job.summary_id for job in silent if job.summary_id is not None})
    silent = [job for job in silent if job.summary_id is None or job.summary_id in free]
    return [job for job in silent if _rescue_one(session, job, max_rescues=max_rescues, lost=WORKER_LOST)]


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


def _rescue_one(session: Session, job: Job, *, max_rescues: int, lost: str) -> JobState | None:
    if job.lease_id is None:
        return None
    lease = Lease(job.id, job.lease_id)
    attempts.record(session, lease.lease_id, AttemptOutcome.LOST, job_id=job.id, error_code=lost)
    state = _take_back(session, job, lease, max_rescues=max_rescues)
    reservations.drain(session, lease.lease_id)
    return state


def _take_back(session: Session, job: Job, lease: Lease, *, max_rescues: int) -> JobState | None:
    if job.stop_reason in (StopReason.CANCEL, StopReason.EXPIRE):
        return finish_stopped(session, lease, StopReason(job.stop_reason), None)
    if job.num_rescues >= max_rescues:
        # It ran alone the last time (see claims), so no other job can have killed its worker.
        return fail(session, lease, _LOST)
    moved = job_rows.move(
        session,
        "rescue",
        *transitions.fence(lease),
        num_rescues=Job.num_rescues + 1,
        **transitions.UNHELD,
        **checkpoints.progress_kept(),
    )
    return JobState.QUEUED if moved else None


WORKER_LOST: Final = "worker_lost"
_LOST: JsonObject = {
    "code": WORKER_LOST,
    "message": "The worker or engine failed on every run of this job, the last time while it ran alone.",
}
