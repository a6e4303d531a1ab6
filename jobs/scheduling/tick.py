"""The tick: one transaction that stores what ended on an engine and starts what fits next."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import datetime
from uuid import UUID

from sqlalchemy.orm import Session

from jobs import lifecycle
from jobs.engines import registry
from jobs.engines.registry import EngineRow
from jobs.finishing import JobEnd, StoredEnd
from jobs.queries import QueuedJob
from jobs.scheduling import engine_load, queue
from jobs.scheduling.engine_load import EngineLoad
from jobs.scheduling.pack import pack, with_started
from jobs.scheduling.packing import Family
from jobs.scheduling.preemption import choose_preemptions
from jobs.scheduling.prefixes import engine_prefixes
from jobs.scheduling.prefixes.engine_prefixes import EnginePrefixes
from jobs.scheduling.prefixes.prefix_replay import Answered
from jobs.scheduling.queue import Queue
from jobs.scheduling.sizing import ClaimPolicy
from jobs.starting import Claim
from jobs.states import Lane


@dataclass(frozen=True, slots=True)
class Tick:
    """The outcome of one tick.

    Attributes:
        stored: what became of the ends, by lease; those that are absent could not be stored now.
        claims: of the jobs that run now.
        free_slots: slots that the engine has left.
        asked_for_room: batch jobs were asked to leave for an interactive one.
        left: the head of the queue that did not start, in rank order; None: the queue was not read.
        missed: other engines started jobs that this one chose: more may fit at once.
    """

    stored: Mapping[UUID, StoredEnd] = field(default_factory=dict)
    claims: Sequence[Claim] = ()
    free_slots: int = 0
    asked_for_room: bool = False
    left: Sequence[QueuedJob] | None = None
    missed: bool = False


def tick(
    session: Session,
    engine_name: str,
    policy: ClaimPolicy | None,
    *,
    ended: Sequence[JobEnd],
    limit: int | None = None,
) -> Tick:
    """Store the ends of these runs, free their slots, and start every job that fits then.

    Args:
        session: the caller's transaction.
        engine_name: where they ran.
        policy: of the claims; None: start nothing.
        ended: runs of this engine.
        limit: most jobs to start; None: as many as there are slots.
    """
    # Before any job's row, as whatever ends several reservations does.
    locked = engine_load.lock(session, engine_name)
    stored = lifecycle.finish(session, ended)
    if policy is None or locked is None or not policy.may_feed(locked[0]):
        return Tick(stored)
    registry.record_tick(session, *locked)
    answered = {
        each.lease_id: Answered(each.output.num_tokens, each.output.cached_tokens)
        for each in ended
        if each.verb == "complete" and each.lease_id is not None and each.output is not None
    }
    return replace(claim(session, *locked, policy, answered=answered, limit=limit), stored=stored)


def claim(
    session: Session,
    engine: EngineRow,
    now: datetime,
    policy: ClaimPolicy,
    *,
    answered: Mapping[UUID, Answered],
    limit: int | None = None,
) -> Tick:
    """Start every job that may start on this engine now and reserve its blocks.

    Args:
        session: the caller's transaction.
        engine: its row, which the transaction has locked.
        now: by the database's clock.
        policy: of the claims.
        answered: by lease, jobs whose reservations this transaction has closed.
        limit: most jobs to start; None: as many as there are slots.
    """
    if engine.paused_reason is not None:
        return Tick()
    load, prefixes = engine_load.read(session, engine), None
    if policy.replay is not None:
        policy.replay.observe(load.reserved, capacity=load.capacity, answered=answered)
        prefixes = EnginePrefixes(session, policy.replay, load)
    if engine.halt is not None or (load.budget.free_slots < 1 and not load.interactive_waits):
        return Tick()
    claiming = _Claiming(session, engine, now, policy, prefixes, load, limit)
    elsewhere: AbstractSet[Family] = frozenset()
    if prefixes is not None:
        others = engine_prefixes.elsewhere(session, engine.name, engine.model)
        elsewhere = others - prefixes.families.keys()
    waiting = claiming.start(elsewhere)
    if elsewhere and not claiming.claims and load.budget.idle:
        # What is left begins with what other engines have: better one of those than nothing.
        claiming.limit = 1
        waiting = claiming.start(frozenset())
    return Tick(
        claims=claiming.claims,
        free_slots=max(0, claiming.load.budget.without_waiting_room().free_slots),
        asked_for_room=claiming.ask_for_room(waiting),
        left=[waiting.jobs[each.job_id] for each in waiting.candidates],
        missed=claiming.missed,
    )


@dataclass(slots=True)
class _Claiming:
    """The jobs that start within one transaction, which holds the engine's row, and what they leave free."""

    session: Session
    engine: EngineRow
    now: datetime
    policy: ClaimPolicy
    prefixes: EnginePrefixes | None
    load: EngineLoad
    limit: int | None
    claims: list[Claim] = field(default_factory=list)
    missed: bool = False

    @property
    def num_left(self) -> int | None:
        """Return how many more jobs may start at most; None: as many as fit."""
        return None if self.limit is None else self.limit - len(self.claims)

    def start(self, elsewhere: AbstractSet[Family]) -> Queue:
        """Start the jobs at the head of the queue that fit; return the queue without them.

        Args:
            elsewhere: families that are left to other engines.
        """
        found = queue.read(
            self.session,
            self.engine,
            self.now,
            self.policy,
            free_slots=self.load.budget.free_slots,
            prefixes=self.prefixes,
            elsewhere=elsewhere,
        )
        while chosen := pack(found, self.load, limit=self.num_left):
            if self._start(chosen) == len(chosen):
                break  # no other fits now
            self.missed = True
        return found

    def ask_for_room(self, waiting: Queue) -> bool:
        """Ask batch jobs to leave for the first interactive one.

        Returns:
            True if any was asked.
        """
        candidates, policy = waiting.candidates, self.policy
        if not candidates or self.num_left == 0 or not policy.preempts:
            return False
        if candidates[0].lane is not Lane.INTERACTIVE:
            return False
        leaving = choose_preemptions(
            candidates[0],
            list(self.load.reserved.values()),
            self.load.budget,
            max_batch_size=self.load.capacity.max_batch_size,
            policy=policy.packing,
            batch_waits=any(each.lane is Lane.BATCH for each in candidates),
        )
        return bool(leaving) and lifecycle.request_preemption(self.session, leaving) > 0

    def _start(self, chosen: Sequence[Claim]) -> int:
        """Claim these jobs, all but those that another engine was faster with or that have changed.

        Returns:
            How many are claimed.
        """
        started = lifecycle.claim(
            self.session,
            chosen,
            lease_duration=self.policy.lease,
            engine_name=self.engine.name,
            claimant=self.policy.claimant,
        )
        self.claims += started
        for each in started:
            self.load = with_started(self.load, each)
            if self.policy.replay is not None:
                self.policy.replay.start(
                    each.lease.lease_id,
                    self.load.reserved[each.lease.lease_id],
                    reused_tokens=each.reused_tokens,
                    postpones=each.postponed_id,
                    likely_tokens=each.likely_tokens,
                )
        return len(started)
