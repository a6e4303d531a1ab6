"""The claim: one transaction that reserves slots and blocks and puts jobs under leases."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy.orm import Session

from jobs.engines.registry import EngineRow
from jobs.queries import QueuedJob
from jobs.scheduling import engine_load
from jobs.scheduling.engine_load import EngineLoad
from jobs.scheduling.engine_queue import EngineQueue
from jobs.scheduling.prefixes.prefix_replay import Answered
from jobs.scheduling.previews import Preview
from jobs.scheduling.ranking import Ranked
from jobs.scheduling.sizing import ClaimPolicy
from jobs.scheduling.starts import Claim, Starts
from jobs.scheduling.waiting import WaitingTenants


@dataclass(frozen=True, slots=True)
class FreedSlot:
    """A job whose request is over, as the engine confirmed; its end is not recorded yet.

    Attributes:
        lease_id: of the reservation to close.
        generated_tokens: in all, in earlier runs too.
        cached_tokens: of its prompt, that the engine had; None: it did not tell.
    """

    lease_id: UUID
    generated_tokens: int
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ReadAhead:
    """What a transaction knows since it locked the engine; what is None is read when it is needed.

    Attributes:
        load: of the engine, since reservations were closed too.
        queued: ids of the preview's candidates that are queued yet, if other engines take from the queue.
        waiting: who waits for the engine's model.
        first: the first batch jobs of one of these.
    """

    load: EngineLoad | None = None
    queued: Collection[UUID] | None = None
    waiting: WaitingTenants | None = None
    first: Sequence[QueuedJob] = ()


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """The outcome of one pass over the queue.

    Attributes:
        claims: of the jobs that run now.
        free_slots: slots that the engine has left.
        asked_for_room: batch jobs were asked to leave for an interactive one.
        left: candidates that were read and did not start; None: the queue was not read.
    """

    claims: Sequence[Claim] = ()
    free_slots: int = 0
    asked_for_room: bool = False
    left: Sequence[Ranked] | None = None


def start_jobs(
    session: Session,
    locked: tuple[EngineRow, datetime] | None,
    policy: ClaimPolicy,
    *,
    ahead: ReadAhead | None = None,
    preview: Preview | None = None,
    limit: int | None = None,
    ended: Sequence[FreedSlot] = (),
) -> ClaimResult:
    """Start every job that may start on this engine now and reserve its blocks; `ticks.tick` calls this.

    Args:
        session: the caller's transaction.
        locked: the engine's row and the time, as `engine_load.lock` returned them in this transaction.
        policy: of the claims.
        ahead: what has been read since then; None: nothing.
        preview: candidates read a moment ago; the queue is read again only if a slot stays free, or if jobs
            wait that begin with what the engine has, and it has none of them.
        limit: most jobs to start; None: as many as there are slots.
        ended: jobs whose reservations this transaction has closed.
    """
    if locked is None:
        return ClaimResult()
    engine, now = locked
    if engine.paused_reason is not None:
        return ClaimResult()
    ahead = ahead or ReadAhead()
    load = ahead.load or engine_load.read(session, engine)
    if policy.replay is not None:
        answered = {each.lease_id: Answered(each.generated_tokens, each.cached_tokens) for each in ended}
        policy.replay.observe(load.guests, capacity=load.capacity, answered=answered)
    if engine.halt is not None:
        return ClaimResult()
    queue = EngineQueue(
        session,
        engine,
        now,
        load,
        policy,
        marks_idle=not ended,
        waiting=ahead.waiting,
        first=ahead.first,
    )
    if load.budget.free_slots < 1 and not load.interactive_waits:
        return ClaimResult()
    starting = Starts(queue, load, limit)
    # An interactive job may have come since the preview, and batch jobs may have left to make room for it.
    is_usable = preview is not None and not load.interactive_waits
    if preview is not None and is_usable and not queue.has_followers_beyond(preview.candidates):
        starting.start(queue.still_waiting(preview.candidates, ahead.queued))
    asked_for_room, left = False, None
    if not starting.claims or not starting.is_full:
        elsewhere = queue.elsewhere()
        left = starting.start(queue.head(elsewhere=elsewhere))
        if elsewhere and not starting.claims and load.budget.idle:
            # What is left begins with what other engines have: better one of those than nothing.
            starting.limit = 1
            left = starting.start(queue.head(elsewhere=frozenset()))
        asked_for_room = bool(left) and not starting.is_done and starting.ask_for_room(left)
    return ClaimResult(starting.claims, starting.load.budget.free_slots, asked_for_room, left)
