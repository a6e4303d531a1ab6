"""Head starts: the job whose request takes the slot of a run that has just ended, before a tick claims it."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from jobs.ids import uuid7
from jobs.scheduling.choosing import choose_ranked, may_share, with_started, without
from jobs.scheduling.engine_load import EngineLoad
from jobs.scheduling.packing import PackingPolicy
from jobs.scheduling.prefixes.engine_prefixes import EnginePrefixes
from jobs.scheduling.prefixes.followers import Reuse
from jobs.scheduling.ranking import Ranked
from jobs.transitions import Lease


@dataclass(frozen=True, slots=True)
class HeadStart:
    """A queued job whose request was sent before its claim.

    Attributes:
        ranked: the job as a candidate.
        lease: that its claim is to give it.
        overtakes: a better ranked job that its growth must not postpone.
        is_answered: its answer is whole, and stored with its claim; so it needs no place.
    """

    ranked: Ranked
    lease: Lease
    overtakes: UUID | None = None
    is_answered: bool = False


@dataclass(frozen=True, slots=True)
class FilledSlot:
    """The slot of a run that has ended.

    Attributes:
        ended: the run's lease.
        head_start: what is in the slot now; None: nothing.
    """

    ended: UUID
    head_start: HeadStart | None = None


def _send_none(_chosen: Sequence[HeadStart]) -> Collection[Lease]:
    return ()


@dataclass(frozen=True, slots=True)
class Begun:
    """What a tick finds in the engine whose jobs are not claimed.

    Attributes:
        claimed_now: head starts whose jobs it claims: each began in the slot of a run whose end it stores. In
            the order in which they began.
        under_way: slots of other runs that have ended, with what is in them, in the order in which it began.
            These runs hold their reservations yet, or are themselves claimed now or under way.
        strays: requests that are being stopped, and have no place: the tick that chose them failed.
        send: sends requests of jobs that the tick is about to claim for free slots; returns the leases of
            those that it sent.
    """

    claimed_now: Sequence[HeadStart] = ()
    under_way: Sequence[FilledSlot] = ()
    strays: Sequence[HeadStart] = ()
    send: Callable[[Sequence[HeadStart]], Collection[Lease]] = _send_none

    @property
    def head_starts(self) -> Sequence[HeadStart]:
        """All of them."""
        others = [each.head_start for each in self.under_way if each.head_start is not None]
        return [*self.claimed_now, *others, *self.strays]

    @property
    def job_ids(self) -> frozenset[UUID]:
        """The jobs of all of them."""
        return frozenset(each.lease.job_id for each in self.head_starts)

    @property
    def answered(self) -> frozenset[Lease]:
        """The leases of those that are answered."""
        return frozenset(each.lease for each in self.claimed_now if each.is_answered)

    def split(self) -> tuple[Sequence[FilledSlot], Sequence[FilledSlot]]:
        """Divide what is under way: in slots that are reserved or free, and of what is claimed now."""
        reserved, following = [FilledSlot(uuid7(), each) for each in self.strays], list[FilledSlot]()
        leases = {each.lease.lease_id for each in self.claimed_now}
        for each in self.under_way:
            if each.ended not in leases:
                reserved.append(each)
                continue
            following.append(each)
            if each.head_start is not None:
                leases.add(each.head_start.lease.lease_id)
        return reserved, following

    def places(self, taken: Collection[Lease]) -> list[HeadStart]:
        """Return what needs a place: what is in the slots of those that were to be claimed and are not."""
        inside = {each.ended: each.head_start for each in self.under_way if each.head_start is not None}
        found = [*self.strays]
        for each in self.claimed_now:
            if each.is_answered or each.lease in taken:
                continue
            last = each
            while (later := inside.get(last.lease.lease_id)) is not None:
                last = later
            found.append(last)
        return found


NOTHING_BEGUN: Final = Begun()


@dataclass(frozen=True, slots=True)
class Outlook:
    """An engine as a tick left it, and as runs end since then; the next choice is foretold from it.

    Attributes:
        load: of the engine, with what the tick started.
        packing: the policy of the packing then.
        known: what the engine had of prompts; None: it reuses none.
    """

    load: EngineLoad
    packing: PackingPolicy
    known: EnginePrefixes | None

    def successor(
        self,
        candidates: Sequence[Ranked],
        *,
        ended: UUID,
        is_ticking: bool = False,
    ) -> HeadStart | None:
        """Foretell which job the next tick starts in the slot of a run that has just ended.

        It fits into what the run leaves, and what was free. Nothing is foretold where a tick weighs more than
        the packing does: jobs that share prompts, interactive jobs that wait, a job that must run alone. Nor
        is a job that another engine probably takes.

        Args:
            candidates: the head of the queue, in rank order.
            ended: the lease of the run.
            is_ticking: a tick is under way that does not store this end. What else is free is the tick's;
                `ticked` tells what it starts there.

        Returns:
            None if no job starts, or if it is uncertain which.
        """
        load = self.load
        if ended not in load.running or load.interactive_waits or self._has_lone_job():
            return None
        left_blocks = load.running[ended].blocks
        load = without(load, ended)
        if self.known is not None and may_share([each.job for each in candidates], self.known):
            return None
        choice = choose_ranked(candidates, load, self.packing, None)
        chosen = next((each for each in candidates if each.job.id == choice.start), None)
        if chosen is None or chosen.candidate.alone:
            return None
        if is_ticking and chosen.candidate.room > left_blocks:
            return None
        return HeadStart(chosen, Lease(chosen.job.id, uuid7()), choice.overtakes)

    def ticked(self, candidates: Sequence[Ranked]) -> tuple["Outlook", frozenset[UUID]]:
        """Foretell what a tick that begins now starts in free slots.

        Returns:
            The outlook with these jobs, and their ids.
        """
        load, started = self.load, set[UUID]()
        while load.budget.free_slots > 0:
            left = [each for each in candidates if each.job.id not in started]
            choice = choose_ranked(left, load, self.packing, None)
            chosen = next((each for each in left if each.job.id == choice.start), None)
            if chosen is None:
                break
            started.add(chosen.job.id)
            load = with_started(load, chosen, Lease(chosen.job.id, uuid7()), Reuse())
        return replace(self, load=load), frozenset(started)

    def started(self, chosen: Sequence[Ranked]) -> "Outlook":
        """Return the outlook once these jobs, which a tick has chosen, have started in free slots."""
        load = self.load
        for each in chosen:
            load = with_started(load, each, Lease(each.job.id, uuid7()), Reuse())
        return replace(self, load=load)

    def refilled(self, slot: FilledSlot) -> "Outlook":
        """Return the outlook once the slot's run has ended and what took its place has started."""
        return replace(self, load=refilled(self.load, slot))

    def _has_lone_job(self) -> bool:
        """Return True if slots without a job are not to be filled."""
        budget = self.load.budget
        return budget.free_slots + len(self.load.running) != self.load.capacity.max_batch_size


def refilled(load: EngineLoad, slot: FilledSlot) -> EngineLoad:
    """Return the load once the slot's run has ended and what took its place has started.

    Its end is not stored yet: blocks that the run leaves besides are reserved until then.
    """
    free_blocks = load.budget.free_blocks
    if slot.ended in load.running:
        load = without(load, slot.ended)
    if slot.head_start is not None and slot.head_start.lease.lease_id not in load.running:
        load = with_started(load, slot.head_start.ranked, slot.head_start.lease, Reuse())
    free_blocks = min(free_blocks, load.budget.free_blocks)
    return replace(load, budget=replace(load.budget, free_blocks=free_blocks))
