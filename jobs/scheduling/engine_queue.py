"""The queue as one engine sees it, within one transaction."""

from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from sqlalchemy.orm import Session

from jobs.engines import registry
from jobs.engines.registry import EngineRow
from jobs.queries import QueuedJob
from jobs.scheduling.candidates import followers, still_queued
from jobs.scheduling.engine_load import EngineLoad
from jobs.scheduling.prefixes import engine_prefixes
from jobs.scheduling.prefixes.engine_prefixes import EnginePrefixes
from jobs.scheduling.prefixes.followers import Family
from jobs.scheduling.ranking import Ranked, Ranking
from jobs.scheduling.sizing import ClaimPolicy, Sizer
from jobs.scheduling.waiting import WaitingTenants
from jobs.states import Lane


@dataclass(slots=True)
class EngineQueue:
    """The queue of an engine's model, as the engine may choose from it.

    Attributes:
        marks_idle: the accounts of tenants that have left are marked now; otherwise a later reading of the
            queue does it.
        waiting: who waits, read since the engine was locked; None: it is read when it is needed.
        first: the first batch jobs of one of these, by the engine's capacity, if they were read with that.
        known: what the engine has of prompts; None: it reuses none.
    """

    session: Session
    engine: EngineRow
    now: datetime
    load: EngineLoad
    policy: ClaimPolicy
    marks_idle: bool = field(default=True, kw_only=True)
    waiting: WaitingTenants | None = field(default=None, kw_only=True)
    first: Sequence[QueuedJob] = field(default=(), kw_only=True)
    known: EnginePrefixes | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        """Find out what the engine has of prompts."""
        if self.policy.replay is not None:
            self.known = EnginePrefixes(self.session, self.policy.replay, self.load)

    def note_missed(self) -> None:
        """Remember that other engines start what this one chooses."""
        if self.policy.rivals is not None:
            self.policy.rivals.note_missed()

    def look_for_rivals(self) -> None:
        """Find out which other engines take from the queue now."""
        if self.policy.rivals is not None:
            others = registry.sharing_queue(self.session, self.engine.model, self.load.capacity)
            self.policy.rivals.know({*others} - {self.engine.name})

    def still_waiting(
        self, candidates: Sequence[Ranked], queued: Collection[UUID] | None = None
    ) -> list[Ranked]:
        """Leave out what other engines have started meanwhile, if they do: each miss costs a statement.

        Args:
            candidates: that were read before.
            queued: ids of those that are still queued; None: they are looked up.
        """
        if not self.policy.has_rivals:
            return list(candidates)
        if queued is None:
            queued = still_queued(self.session, [each.job.id for each in candidates])
        waiting = [each for each in candidates if each.job.id in queued]
        if len(waiting) < len(candidates):
            self.note_missed()
        return waiting

    def elsewhere(self) -> AbstractSet[Family]:
        """Find the families that this engine leaves to others of its model, which have them."""
        if self.known is None:
            return frozenset()
        others = engine_prefixes.elsewhere(self.session, self.engine.name, self.engine.model)
        return others - {*self.known.here, *self.known.reading}

    def head(self, *, elsewhere: AbstractSet[Family]) -> list[Ranked]:
        """Read the head of the queue, without batch jobs that begin with what other engines have."""
        if self.policy.has_rivals:
            self.look_for_rivals()
        ranking = Ranking(
            self.session,
            self.engine.model,
            self.load.capacity,
            self.policy,
            Sizer(self.session, self.load.capacity, self.policy),
            self.now,
            known=self.known,
            elsewhere=elsewhere,
            engine_name=self.engine.name,
            marks_idle=self.marks_idle,
            waiting=self.waiting,
            first=self.first,
        )
        return ranking.head()

    def has_followers_beyond(self, candidates: Sequence[Ranked]) -> bool:
        """Return True if jobs wait for a document that is here, and none of these candidates has it."""
        if self.known is None:
            return False
        self.known.know([each.job for each in candidates])
        there = {self.known.family_of(each.job) for each in candidates}
        lacking = [family for family in self.known.here if family not in there]
        capacity, sought = self.load.capacity, self.known.sought(lacking)
        return bool(
            followers(self.session, self.engine.model, Lane.BATCH, sought, capacity=capacity, now=self.now)
        )
