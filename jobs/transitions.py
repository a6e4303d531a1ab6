"""The guarded UPDATEs behind every verb of a job's life.

Each names the states it may start from (TRANSITIONS) and, for a worker's write, the lease that fences it.
Zero rows mean that somebody else was first, and the caller writes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, case, or_, select, update
from sqlalchemy.orm import Session

from jobs import checkpoints, endings
from jobs.checkpoints import Output
from jobs.guarded_update import move, moving
from jobs.models import Job
from jobs.states import JobState, StopReason, sources

__all__ = [
    "ENDS",
    "UNHELD",
    "Lease",
    "end",
    "fence",
    "finish",
    "move",
    "moving",
    "request_stop",
    "requeue",
    "weaker_than",
    "write",
]


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write to a running job."""

    job_id: UUID
    lease_id: UUID


# The verbs by which jobs end that were asked to.
ENDS = {StopReason.CANCEL: "cancel", StopReason.EXPIRE: "expire"}
# Whoever wants it to end altogether is served before a job goes back to the queue.
UNHELD: dict[str, Any] = {
    "lease_id": None,
    "lease_expires_at": None,
    "engine_name": None,
    "stop_reason": None,
}


def fence(lease: Lease) -> tuple[ColumnElement[bool], ...]:
    """The conditions under which this lease may write."""
    return (Job.id == lease.job_id, Job.lease_id == lease.lease_id)


def finish(session: Session, verb: str, lease: Lease, output: Output | None, **values: Any) -> bool:  # noqa: ANN401  # columns have many types
    """Terminal state, result and event in the caller's one transaction, or nothing."""
    held = select(Job.id).where(*fence(lease), Job.state.in_(sources(verb))).with_for_update()
    if session.scalar(held) is None:
        return False
    if output is not None:
        checkpoints.save(session, lease.job_id, output)
    return bool(end(session, verb, *fence(lease), **values))


def end(session: Session, verb: str, *conditions: ColumnElement[bool], **values: Any) -> list[Job]:  # noqa: ANN401  # columns have many types
    """The jobs that ended: what each had generated is its result now, and its event stands."""
    kept = checkpoints.progress_kept()["completion_tokens"]
    ended = move(session, verb, *conditions, completion_tokens=kept, **values)
    checkpoints.into_results(session, [job.id for job in ended])
    endings.note(session, ended)
    return ended


def requeue(
    session: Session,
    verb: str,
    lease: Lease,
    output: Output | None,
    **values: Any,  # noqa: ANN401  # columns have many types
) -> JobState | None:
    """A worker's job is queued again, unless it was asked to end: then it ends, without an engine."""
    asked = select(Job.id, Job.stop_reason).where(*fence(lease), Job.state == "running").with_for_update()
    row = session.execute(asked).one_or_none()
    if row is None:
        return None
    if row.stop_reason in (StopReason.CANCEL, StopReason.EXPIRE):
        reason = StopReason(row.stop_reason)
        finish(session, ENDS[reason], lease, output)
        return JobState.CANCELLED if reason is StopReason.CANCEL else JobState.EXPIRED
    if output is not None and output.num_tokens and output.is_resumable:
        checkpoints.save(session, lease.job_id, output)
    move(session, verb, *fence(lease), **values, **UNHELD, **checkpoints.progress_kept())
    return JobState.QUEUED


def write(session: Session, lease: Lease, **values: Any) -> int:  # noqa: ANN401  # columns have many types
    """A worker's note on a job it still holds; the number of rows, 0 when the lease is lost."""
    written = session.execute(
        update(Job).where(*fence(lease), Job.state == "running").values(**values).returning(Job.id)
    )
    return len(written.all())


def request_stop(session: Session, reason: StopReason, conditions: Sequence[ColumnElement[bool]]) -> int:
    """Running jobs are asked to stop; a stronger reason replaces a weaker one."""
    asked = session.execute(
        update(Job)
        .where(*conditions, Job.state == "running", weaker_than(reason))
        .values(stop_reason=reason.value)
        .returning(Job.id)
        .execution_options(synchronize_session=False)
    )
    return len(asked.all())


def weaker_than(reason: StopReason) -> ColumnElement[bool]:
    """Whether a job was not asked to stop yet, or for a weaker reason."""
    strength = case({each.value: place for place, each in enumerate(StopReason)}, value=Job.stop_reason)
    return or_(Job.stop_reason.is_(None), strength > list(StopReason).index(reason))
