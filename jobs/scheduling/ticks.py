"""The tick: one transaction that stores what ended on an engine and starts what fits next."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from jobs import lifecycle
from jobs.completing import Completed, JobCompletion
from jobs.engines import reservations
from jobs.scheduling import claims, engine_load
from jobs.scheduling.claims import ClaimResult, FreedSlot
from jobs.scheduling.previews import Preview
from jobs.scheduling.sizing import ClaimPolicy


@dataclass(frozen=True, slots=True)
class TickResult:
    """The outcome of one tick.

    Attributes:
        completed: what became of the answers.
        claimed: what started.
    """

    completed: Completed
    claimed: ClaimResult


def tick(
    session: Session,
    engine_name: str,
    policy: ClaimPolicy | None,
    *,
    ended: Sequence[JobCompletion],
    preview: Preview | None = None,
) -> TickResult:
    """Store the answers of these runs, free their slots, and start every job that fits then.

    Args:
        session: the caller's transaction.
        engine_name: where they ran.
        policy: of the claims; None: start nothing.
        ended: runs of this engine.
        preview: as in `claims.start_jobs`.
    """
    locked = engine_load.lock(session, engine_name)  # before any job's row, here as everywhere
    completed = lifecycle.complete_all(session, ended)
    for each in ended:
        # A job that is not stored yet does not say what it generated; whoever stores it lets it drain.
        if not each.engine_is_done and each.lease.job_id in completed.job_ids:
            reservations.drain(session, each.lease.lease_id)
    if policy is None:
        return TickResult(completed, ClaimResult())
    freed = [
        FreedSlot(each.lease.lease_id, each.output.num_tokens, each.output.cached_tokens) for each in ended
    ]
    return TickResult(completed, claims.start_jobs(session, locked, policy, preview=preview, ended=freed))
