"""The guarded UPDATEs under every verb of a job's life.

Each names the states it may start from (TRANSITIONS) and, for a worker's write, the lease that fences it.
Zero rows mean that another transaction was first, and the caller writes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, or_, select, update
from sqlalchemy.orm import Session

from jobs import checkpoints
from jobs.checkpoints import Output
from jobs.database import note_ended
from jobs.engines import attempts
from jobs.job_rows import move
from jobs.models import Job, JsonObject
from jobs.sharing import ends
from jobs.states import TRANSITIONS, AttemptOutcome, JobState, StopReason, sources
from jobs.tenants import usage
from jobs.trees import progress as tree_progress
from jobs.webhooks import events, outbox


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write to a running job."""

    job_id: UUID
    lease_id: UUID


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """Another worker may have the job now: this one must not write to it."""


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How a run ended, for its row among the attempts.

    Attributes:
        outcome: in one word.
        error_code: of the error that ended it; None: none did.
    """

    outcome: AttemptOutcome
    error_code: str | None = None


# The verbs that end a job on request.
ENDS: dict[str, str] = {StopReason.CANCEL: "cancel", StopReason.EXPIRE: "expire"}
# A stronger reason to stop replaces a weaker one.
_STRENGTH = {StopReason.SHUTDOWN: 0, StopReason.PREEMPT: 1, StopReason.EXPIRE: 2, StopReason.CANCEL: 3}
# Columns cleared when a job returns to the queue. A pending cancel or expiry is honoured first.
UNHELD: dict[str, Any] = {
    "lease_id": None,
    "lease_expires_at": None,
    "engine_name": None,
    "stop_reason": None,
}


def fence(lease: Lease) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions under which this lease may write."""
    return (Job.id == lease.job_id, Job.lease_id == lease.lease_id)


def finish(
    session: Session,
    verb: str,
    lease: Lease,
    output: Output | None,
    **values: Any,  # noqa: ANN401  # columns have many types
) -> JobState | None:
    """Write terminal state, result and event in the caller's transaction, or nothing.

    Returns:
        The job's new state; None if the lease is lost.
    """
    owned_job = select(Job.id).where(*fence(lease), Job.state.in_(sources(verb))).with_for_update()
    if session.scalar(owned_job) is None:
        return None
    error: JsonObject | None = values.get("error")
    ended_as = AttemptOutcome(TRANSITIONS[verb][1].value)
    _record(session, lease, RunOutcome(ended_as, str(error["code"]) if error else None), output)
    if output is not None:
        checkpoints.save(session, lease.job_id, output)
    ended = end(session, verb, *fence(lease), **values, **checkpoints.told(output))
    return TRANSITIONS[verb][1] if ended else None


def end(session: Session, verb: str, *conditions: ColumnElement[bool], **values: Any) -> list[Job]:  # noqa: ANN401  # columns have many types
    """End the matching jobs, store what they generated as results, and publish it.

    Returns:
        The jobs that ended.
    """
    kept = checkpoints.progress_kept()["completion_tokens"]
    ended = move(session, verb, *conditions, completion_tokens=kept, **values)
    ends.hand_on(session, ended)
    checkpoints.into_results(session, [job.id for job in ended])
    after_end(session, ended)
    return ended


def after_end(session: Session, ended: Sequence[Job]) -> None:
    """Record the jobs' usage, queue their events, end their twins, and unblock or end their summaries.

    Every finished job passes here, `completing` or `tree_progress.stop`, exactly once. The caller holds their
    rows. This locks the rows of their summaries after those of the jobs. All code keeps that order, and no
    transaction that holds a summary's row waits for a job row that another can hold.
    """
    if ended:
        note_ended(session, [job.id for job in ended])
    usage.record(session, ended)
    outbox.publish(session, [events.job_ended(job) for job in ended])
    tree_progress.advance(session, ended)
    ends.share(session, ended)


def requeue(
    session: Session,
    verb: str,
    lease: Lease,
    output: Output | None,
    *,
    run: RunOutcome,
    **values: Any,  # noqa: ANN401  # columns have many types
) -> JobState | None:
    """Queue a worker's job again, or end it if a request asked for that.

    A job that ends this way needs no engine.

    Returns:
        The job's new state; None if the lease is lost.
    """
    asked = select(Job.id, Job.stop_reason).where(*fence(lease), Job.state == "running").with_for_update()
    row = session.execute(asked).one_or_none()
    if row is None:
        return None
    if row.stop_reason in ENDS:
        return finish(session, ENDS[row.stop_reason], lease, output)
    _record(session, lease, run, output)
    if output is not None and output.num_tokens and output.is_resumable:
        checkpoints.save(session, lease.job_id, output)
    elif output is not None and not output.is_resumable:
        checkpoints.drop(session, lease.job_id)
    kept = checkpoints.told(output) | checkpoints.progress_kept()
    move(session, verb, *fence(lease), **values, **UNHELD, **kept)
    return JobState.QUEUED


def _record(session: Session, lease: Lease, run: RunOutcome, output: Output | None) -> None:
    """Keep how the run ends that this lease owns; the caller holds its job's row."""
    attempts.record(
        session,
        lease.lease_id,
        run.outcome,
        job_id=lease.job_id,
        error_code=run.error_code,
        produced=output.num_tokens if output else None,
        cached_tokens=output.cached_tokens if output else None,
    )


def write(session: Session, lease: Lease, **values: Any) -> int:  # noqa: ANN401  # columns have many types
    """Update a job that the worker still holds.

    Returns:
        The number of rows; 0 if the lease is lost.
    """
    written = session.execute(
        update(Job).where(*fence(lease), Job.state == "running").values(**values).returning(Job.id)
    )
    return len(written.all())


def request_stop(session: Session, reason: StopReason, conditions: Sequence[ColumnElement[bool]]) -> int:
    """Ask running jobs to stop; a stronger reason replaces a weaker one.

    Returns:
        How many jobs it asked.
    """
    asked = session.execute(
        update(Job)
        .where(*conditions, Job.state == "running", weaker_than(reason))
        .values(stop_reason=reason.value)
        .returning(Job.id)
        .execution_options(synchronize_session=False)
    )
    return len(asked.all())


def weaker_than(reason: StopReason) -> ColumnElement[bool]:
    """Match jobs that were not asked to stop, or only for a weaker reason."""
    weaker = [each.value for each, strength in _STRENGTH.items() if strength < _STRENGTH[reason]]
    return or_(Job.stop_reason.is_(None), Job.stop_reason.in_(weaker))
