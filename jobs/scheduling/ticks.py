"""The tick: one transaction that stores what ended on an engine and starts what fits next."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from sqlalchemy.orm import Session

from jobs import completing
from jobs.completing import Completed, JobCompletion
from jobs.database import statements
from jobs.database.statements import Query
from jobs.engines import registry, reservations
from jobs.engines.capacity import Capacity
from jobs.engines.registry import EngineRow
from jobs.queries import QueuedJob
from jobs.scheduling import candidates, claims, engine_load
from jobs.scheduling.claims import ClaimResult, FreedSlot, ReadAhead
from jobs.scheduling.previews import Preview
from jobs.scheduling.sizing import ClaimPolicy
from jobs.scheduling.waiting import asking_waiting, waiting_of
from jobs.states import Lane
from jobs.trees import progress as tree_progress


@dataclass(frozen=True, slots=True)
class Expected:
    """What an engine probably serves: what it did when its worker last looked.

    Attributes:
        is_free: it probably has a free slot, and takes what waits first.
    """

    model: str
    capacity: Capacity
    is_free: bool = True

    def asking(self, engine_name: str) -> list[Query]:
        """Return the queries for who waits for such an engine and, if it is free, for what it may start."""
        if not self.is_free:
            return [asking_waiting(self.model, engine_name)]
        max_rows = candidates.max_rows_on(self.capacity)
        first = candidates.asking_first_of_one(
            self.model, Lane.BATCH, capacity=self.capacity, max_rows=max_rows
        )
        return [asking_waiting(self.model, engine_name), first]


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
    expected: Expected | None = None,
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
        expected: of the engine: if nothing has ended, who waits for it, and what it may start, is read in the
            same message. None: later.
    """
    locked, completed, ahead = _read(
        session, engine_name, policy, ended=ended, preview=preview, expected=expected
    )
    for each in ended:
        # A job that is not stored yet does not say what it generated; whoever stores it lets it drain.
        if not each.engine_is_done and each.lease.job_id in completed.job_ids:
            reservations.drain(session, each.lease.lease_id)
    if policy is None or locked is None or not policy.may_feed(locked[0]):
        return TickResult(completed, ClaimResult())
    registry.record_tick(session, *locked)
    freed = [
        FreedSlot(each.lease.lease_id, each.output.num_tokens, each.output.cached_tokens) for each in ended
    ]
    claimed = claims.start_jobs(session, locked, policy, ahead=ahead, preview=preview, ended=freed)
    return TickResult(completed, claimed)


class _FirstRead(NamedTuple):
    """What the first message of a tick brings: the engine and the time, what is stored, and what is there."""

    locked: tuple[EngineRow, datetime] | None
    completed: Completed
    ahead: ReadAhead


def _read(
    session: Session,
    engine_name: str,
    policy: ClaimPolicy | None,
    *,
    ended: Sequence[JobCompletion],
    preview: Preview | None,
    expected: Expected | None,
) -> _FirstRead:
    """Lock the engine, store the answers of its runs, and read what the claims need."""
    found, free_trees = [], list[UUID]()
    asked = [engine_load.locking(engine_name)]  # before any job's row, here as everywhere
    if trees := completing.trees_of(ended):  # they come between
        found, asked = statements.fetch_all(session, asked), []
        free_trees = tree_progress.lock_free(session, trees)
    if ended:
        asked.append(completing.completing(ended, free_trees=free_trees))
    # What is about to drain must do so before the reservations are read.
    is_done = all(each.engine_is_done for each in ended)
    if policy is not None and is_done:
        asked.append(engine_load.reading(engine_name))
    queued_ids = None
    if policy is not None and policy.has_rivals and preview is not None:
        queued_ids = [each.job.id for each in preview.candidates]
        asked.append(candidates.asking_queued(queued_ids))
    if policy is None or ended or preview is not None:
        expected = None
    asked += expected.asking(engine_name) if expected is not None else ()
    rows = iter([*found, *statements.fetch_all(session, asked)])
    locked = engine_load.locked(next(rows))
    completed = completing.completed(session, next(rows)) if ended else Completed()
    if policy is None or locked is None:
        return _FirstRead(locked, completed, ReadAhead())
    load = engine_load.load_of(locked[0], next(rows)) if is_done else None
    queued = candidates.queued_of(next(rows)) if queued_ids is not None else None
    waiting, first = None, list[QueuedJob]()
    if expected is not None and expected.model == locked[0].model:
        waiting = waiting_of(next(rows))
        if expected.is_free and expected.capacity == registry.capacity_of(locked[0]):
            first = candidates.first_of(next(rows))
    return _FirstRead(locked, completed, ReadAhead(load, queued, waiting, first))
