"""What a worker does with its leases: renew them, report progress, and read stop requests.

No verb here waits for a locked row: one such job would hold up all the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from sqlalchemy import Integer, Interval, Select, Uuid, column, func, select, update, values
from sqlalchemy.orm import Session

from jobs import checkpoints, transitions
from jobs.checkpoints import Output
from jobs.models import Job
from jobs.states import StopReason
from jobs.transitions import Lease


def renew(session: Session, leases: Sequence[Lease], *, lease: timedelta) -> set[UUID]:
    """Extend the leases that still hold; an expired one is never revived.

    Returns:
        The ids of the extended leases. Of the others, some are lost, which `read_stops` shows; the rest are
        locked: try again soon.
    """
    if not leases:
        return set()
    holding = _held(leases).where(Job.lease_expires_at > func.clock_timestamp())
    return set(
        session.scalars(
            update(Job)
            .where(Job.id.in_(_free(holding)))
            .values(lease_expires_at=func.clock_timestamp() + lease)
            .returning(Job.lease_id)
            .execution_options(synchronize_session=False)
        )
    )


@dataclass(frozen=True, slots=True)
class JobProgress:
    """How far a running job is.

    Attributes:
        lease: its fence.
        completion_tokens: tokens streamed so far.
        since_first_token: how long ago the first one came.
    """

    lease: Lease
    completion_tokens: int
    since_first_token: timedelta


def report_all(session: Session, reports: Sequence[JobProgress]) -> set[UUID]:
    """Report the progress of many jobs in one statement.

    Returns:
        The ids of the leases reported; the others are lost, or their rows are locked.
    """
    if not reports:
        return set()
    rows = values(
        column("lease_id", Uuid), column("num_tokens", Integer), column("since", Interval), name="reports"
    ).data([(each.lease.lease_id, each.completion_tokens, each.since_first_token) for each in reports])
    held = _held([each.lease for each in reports])
    return set(
        session.scalars(
            update(Job)
            .where(Job.lease_id == rows.c.lease_id, Job.id.in_(_free(held)))
            .values(
                completion_tokens=func.least(rows.c.num_tokens, Job.max_tokens),
                first_token_at=func.coalesce(Job.first_token_at, func.clock_timestamp() - rows.c.since),
            )
            .returning(Job.lease_id)
            .execution_options(synchronize_session=False)
        )
    )


def checkpoint(session: Session, lease: Lease, output: Output) -> bool:
    """Save what the job has generated; it resumes there if its worker is lost.

    Returns:
        False if the lease is lost or the job's row is locked.
    """
    if session.scalar(_free(_held([lease]))) is None:
        return False
    transitions.write(session, lease, completion_tokens=output.num_tokens)
    checkpoints.save(session, lease.job_id, output)
    return True


def read_stops(session: Session, leases: Sequence[Lease]) -> dict[UUID, StopReason | None]:
    """Read why each held lease should end early, by lease id.

    Returns:
        The reasons; None: keep running. A lease that is absent is lost or has expired.
    """
    if not leases:
        return {}
    holding = _held(leases).where(Job.lease_expires_at > func.clock_timestamp())
    rows = session.execute(holding.with_only_columns(Job.lease_id, Job.stop_reason))
    return {lease_id: StopReason(reason) if reason else None for lease_id, reason in rows if lease_id}


def _held(leases: Sequence[Lease]) -> Select[UUID]:
    """Select the running jobs of these leases."""
    return select(Job.id).where(
        Job.id.in_([each.job_id for each in leases]),
        Job.lease_id.in_([each.lease_id for each in leases]),
        Job.state == "running",
    )


def _free(held: Select[UUID]) -> Select[UUID]:
    """Lock those of these jobs that no other transaction is changing.

    A foreign key to a job does not count as a change.
    """
    return held.with_for_update(key_share=True, skip_locked=True)
