"""The tick: one transaction that stores what ended on an engine and starts what fits next."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from sqlalchemy.orm import Session

from jobs import completing, starting
from jobs.completing import Completed, JobCompletion
from jobs.database import direct
from jobs.engines import reservations
from jobs.scheduling import candidates, claims, engine_load
from jobs.scheduling.claims import ClaimResult, FreedSlot, ReadAhead
from jobs.scheduling.head_starts import FilledSlot, HeadStart
from jobs.scheduling.previews import Preview
from jobs.scheduling.sizing import ClaimPolicy
from jobs.trees import progress as tree_progress

# What ticks execute that takes longest to plan.
STATEMENTS: Final = (completing.COMPLETE, candidates.FIRST, starting.START)


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
    model: str | None = None,
    begun: Sequence[HeadStart] = (),
    under_way: Sequence[FilledSlot] = (),
) -> TickResult:
    """Store the answers of these runs, free their slots, and start every job that fits then.

    All that needs no decision of ours goes in one message: the engine's lock, `lifecycle.complete_all`, and
    reading what is reserved then.

    Args:
        session: the caller's transaction.
        engine_name: where they ran.
        policy: of the claims; None: start nothing.
        ended: runs of this engine.
        preview: as in `claims.start_jobs`.
        begun: requests that are in the slots of some of these runs, as in `claims.start_jobs`.
        under_way: requests that are in the slots of others, whose ends a later tick stores.
        model: of the engine; if nothing has ended, who waits for it is read in the same message. None: later.
    """
    found, free_trees = [], list[UUID]()
    asked = [engine_load.locking(engine_name)]  # before any job's row, here as everywhere
    if trees := completing.trees_of(ended):  # they come between
        found, asked = direct.fetch_all(session, asked), []
        free_trees = tree_progress.lock_free(session, trees)
    if ended:
        asked.append(completing.completing(ended, free_trees=free_trees))
    # What is about to drain must do so before the reservations are read.
    is_done = all(each.engine_is_done for each in ended)
    if policy is not None and is_done:
        asked.append(engine_load.reading(engine_name))
    is_shared = policy is not None and policy.has_rivals and preview is not None
    if is_shared and preview is not None:
        asked.append(candidates.asking_queued([each.job.id for each in preview.candidates]))
    reads_queue = policy is not None and not ended and preview is None and model is not None
    if reads_queue and model is not None:
        asked.append(candidates.asking_waiting(model, engine_name))
    rows = iter([*found, *direct.fetch_all(session, asked)])
    locked = engine_load.locked(next(rows))
    completed = completing.completed(session, next(rows)) if ended else Completed()
    for each in ended:
        # A job that is not stored yet does not say what it generated; whoever stores it lets it drain.
        if not each.engine_is_done and each.lease.job_id in completed.job_ids:
            reservations.drain(session, each.lease.lease_id)
    if policy is None or locked is None:
        if locked is not None:
            claims.keep_places(session, engine_name, begun)
        return TickResult(completed, ClaimResult())
    freed = [
        FreedSlot(each.lease.lease_id, each.output.num_tokens, each.output.cached_tokens) for each in ended
    ]
    load = engine_load.load_of(locked[0], next(rows)) if is_done else None
    queued = candidates.queued_of(next(rows)) if is_shared else None
    waiting = candidates.waiting_of(next(rows)) if reads_queue and locked[0].model == model else None
    ahead = ReadAhead(load, queued, waiting, under_way)
    claimed = claims.start_jobs(
        session, locked, policy, ahead=ahead, preview=preview, ended=freed, begun=begun
    )
    return TickResult(completed, claimed)
