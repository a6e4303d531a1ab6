"""Which queued job an engine starts next, so that it is full and no job starves: pure arithmetic.

No later job ever postpones the head of the ranking: while it does not fit, others start only if its start
time stays the same (EASY backfill). Among jobs that waited about equally long, order does not matter, so the
largest that fits starts: big jobs first, small ones into the holes.

The last few requests wait inside the engine, which starts each in the very step in which a slot becomes free
(the waiting room; engines of few slots have none). They hold their blocks, but do not advance yet.

Time is counted in engine iterations ("steps"). Every running job advances one step per iteration, however
long that takes, so their ends can be compared without a clock.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from heapq import heapify, heapreplace
from typing import NamedTuple
from uuid import UUID

from jobs.engines.capacity import Budget
from jobs.states import Lane


@dataclass(frozen=True, slots=True)
class PackingPolicy:
    """What the packing may do to a job that waits.

    Attributes:
        window: candidates considered of each lane, from the head of the ranking.
        stretch: a job's cohort is every job of its group that waited at least 1 - `stretch` as long. Only
            these overtake it, and their number is finite: it waits at most 1 / (1 - `stretch`) of what it
            would in order of arrival. Jobs submitted together are a cohort from the start.
        interactive_share: share of the slots that the interactive lane may hold while batch jobs wait.
        batch_patience: after this wait, the interactive lane leaves the first batch job the blocks it needs.
        preempt_after: tokens that a batch job generates before it may make room for an interactive one.
        max_preemptions: how often one job may have to make room.
        waiting_tokens: prompt tokens at which the waiting room is full. The engine reads them before the
            prompt of an interactive job that comes next.
    """

    window: int = 96
    stretch: float = 0.05
    interactive_share: float = 0.75
    batch_patience: timedelta = timedelta(minutes=10)
    preempt_after: int = 256
    max_preemptions: int = 2
    waiting_tokens: int = 16_384


class Family(NamedTuple):
    """A tenant's prompts that begin alike for the most part; see `prompts.prefixes.family`."""

    tenant_id: UUID
    digest: bytes


@dataclass(frozen=True, slots=True)
class Reuse:
    """What of a queued job's prompt the engine has.

    Attributes:
        tokens: of the prompt's beginning.
        blocks: full blocks of them that are certain to stay, as a running job refers to them too.
        anchor: the lease of such a job. None: there is none, and `blocks` is 0.
    """

    tokens: int = 0
    blocks: int = 0
    anchor: UUID | None = None


_NO_TEXT = UUID(int=0)


@dataclass(frozen=True, slots=True)
class Reserved:
    """One reservation on the engine.

    The last attributes matter to jobs of its family alone.

    Attributes:
        job_id: the job that holds it; a lower one is older.
        blocks: KV blocks that its end frees.
        steps_left: engine iterations until its expected end.
        lane: of the job.
        is_whole: it would start over, so it is never asked to leave for others.
        recompute_tokens: what it would have to read again if it yielded; None: it must not yield.
        new_tokens: generated since it started.
        num_preemptions: times it made room for the interactive lane.
        is_going: it runs towards its end; False: it waits for blocks to continue.
        is_leaving: it was asked to end and will leave in a moment.
        output_tokens: generated tokens that it covers, those of earlier runs included.
        family: with which its job shares what it reads; None: it has none.
        text_id: the prompt, if it has a family.
        reserved_blocks: those that it shares with others included.
        has_read: its whole prompt is in the cache, and stays there while it runs.
        rank: of the job; a higher one goes first.
        prompt_tokens: of the job.
        unread_tokens: of its prompt, that the engine is not known to have read.
        waits: it is in the waiting room.
    """

    job_id: UUID
    blocks: int
    steps_left: int
    lane: Lane = Lane.BATCH
    is_whole: bool = False
    recompute_tokens: int | None = None
    new_tokens: int = 0
    num_preemptions: int = 0
    is_going: bool = True
    is_leaving: bool = False
    output_tokens: int = 0
    family: Family | None = None
    text_id: UUID = _NO_TEXT
    reserved_blocks: int = 0
    has_read: bool = False
    rank: int = 0
    prompt_tokens: int = 0
    unread_tokens: int = 0
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Candidate:
    """One queued job, in the place that its rank gives it among others.

    The last attributes are for jobs that begin alike; see `prefixes.followers`.

    Attributes:
        job_id: the job.
        blocks: what it reserves if it starts.
        steps: engine iterations from its start to its expected end.
        lane: of the job.
        group: tenant and priority; only inside a group does age alone decide the order.
        waited: since it was queued.
        alone: it is suspected of killing engines, so no other job may run with it.
        credited_blocks: of the blocks, those that a running job holds, too, and that need no room now. No
            promise counts on them, as that job may end first.
        output_tokens: generated tokens that its reservation covers, those of earlier runs included.
        unlikely_tokens: of these, those that half of its peers did not need.
        tenant: its owner.
        weight: of the owner.
        lead: what the owner was served, in tokens divided by its weight.
        priority: orders the jobs of a tenant; the higher goes first.
        family: None: it begins like no other.
        reuse: what the engine has of its prompt.
        is_waiting: an earlier job is just reading what it begins with.
        unread_tokens: that the engine reads first.
    """

    job_id: UUID
    blocks: int
    steps: int
    lane: Lane = Lane.BATCH
    group: Hashable = None
    waited: timedelta = timedelta(0)
    alone: bool = False
    credited_blocks: int = 0
    output_tokens: int = 0
    unlikely_tokens: int = 0
    tenant: Hashable = None
    weight: float = 1.0
    lead: float = 0.0
    priority: int = 0
    family: Hashable = None
    reuse: Reuse = Reuse()
    is_waiting: bool = False
    unread_tokens: int = 0

    @property
    def room(self) -> int:
        """Blocks that must be free for it to start now."""
        return self.blocks - self.credited_blocks


@dataclass(frozen=True, slots=True)
class Shadow:
    """The shadow time of a job: when it can start at the latest if no other job postpones it.

    Attributes:
        steps: engine iterations until enough running jobs have ended; 0: it fits now.
        free_blocks: blocks left free when it starts.
    """

    steps: int
    free_blocks: int


@dataclass(frozen=True, slots=True)
class Choice:
    """The outcome of one pass over the queue.

    Attributes:
        start: the job to start now; None: none may start.
        overtakes: a better ranked job whose shadow time this start respects, and its growth must too.
        postpones: the first job of its tenant, which it does postpone as a follower, and for how many steps;
            None: it is no follower, or overtakes only its cohort.
    """

    start: UUID | None
    overtakes: UUID | None = None
    postpones: tuple[UUID, float] | None = None


def choose(
    candidates: Sequence[Candidate],
    reserved: Sequence[Reserved],
    budget: Budget,
    *,
    max_batch_size: int,
    policy: PackingPolicy,
) -> Choice:
    """Choose the largest of the head's cohort that fits, or the next job that may backfill.

    Backfill: the first in rank that fits and does not postpone the head.

    Args:
        candidates: queued jobs in rank order: interactive ones first, then by `fair_share.rank`.
        reserved: every reservation on the engine, including draining ones; see `with_slot_waits`.
        budget: what the engine has free, from `capacity.free_budget`.
        max_batch_size: slots of the engine.
        policy: what the packing may do to a job that waits.
    """
    return Packer(candidates, reserved, budget, max_batch_size=max_batch_size, policy=policy).choose()


class Packer:
    """Chooses jobs for an engine one after the other, each as if those before it had started.

    A choice costs what the window costs, not what runs or waits, unless the head does not fit.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        reserved: Sequence[Reserved],
        budget: Budget,
        *,
        max_batch_size: int,
        policy: PackingPolicy,
    ) -> None:
        """Start with what `choose` takes."""
        # Another user may hold the rest. No start changes it.
        ours = budget.free_blocks + sum(each.blocks for each in reserved)
        possible = [each for each in candidates if each.blocks <= ours]
        self._batch = [each for each in possible if each.lane is Lane.BATCH]
        self._interactive = [each for each in possible if each.lane is Lane.INTERACTIVE]
        self._reserved = list(reserved)
        self._num_interactive = _num_interactive(reserved)
        # Nothing enters the waiting room before an interactive job.
        self._budget = budget.without_waiting_room() if self._interactive else budget
        self._waiting_tokens = sum(each.unread_tokens for each in reserved if each.waits)
        self._max_interactive = _max_interactive(max_batch_size, policy)
        self._policy = policy

    def choose(self) -> Choice:
        """Choose the next job; it does not start before `start`."""
        if self._budget.free_slots < 1 or self._has_full_waiting_room():
            return Choice(start=None)
        policy, reserved, budget = self._policy, self._reserved, self._budget
        allowed = self._within_lanes()
        free = budget.free_blocks
        fitting = [
            each
            for each in allowed
            if each.blocks - each.credited_blocks <= free and (budget.idle or not each.alone)
        ]
        if not fitting:
            return Choice(start=None)
        head, kept_out = allowed[0], _kept_out(allowed, policy)
        cohort = _cohort(head, fitting, policy)
        if kept_out is not None:
            cohort = [each for each in cohort if _spares_blocks(each, kept_out, reserved, budget)]
        if cohort:
            return Choice(max(cohort, key=lambda each: each.room).job_id)
        for each in fitting:
            if each is kept_out:
                return Choice(each.job_id)
            spared = kept_out is None or _spares_blocks(each, kept_out, reserved, budget)
            if spared and not in_cohort(head, each, policy) and not _postpones(each, head, reserved, budget):
                return Choice(each.job_id, overtakes=head.job_id)
        return Choice(start=None)

    def start(self, job_id: UUID) -> None:
        """Count the job as started, which was chosen just now."""
        lane, place = next(
            (lane, place)
            for lane in (self._interactive, self._batch)
            for place, each in enumerate(lane[: self._policy.window])
            if each.job_id == job_id
        )
        started = lane.pop(place)
        steps = started.steps + self.slot_wait
        self._reserved.append(Reserved(job_id, started.room, steps, lane=started.lane))
        self._num_interactive += started.lane is Lane.INTERACTIVE
        self._waiting_tokens += started.unread_tokens if self._budget.next_waits else 0
        self._budget = self._budget.after(started.room, alone=started.alone)

    @property
    def slot_wait(self) -> int:
        """Steps until the next job that starts has a slot."""
        return slot_wait(self._reserved, self._budget)

    def _has_full_waiting_room(self) -> bool:
        """Return True if the next job would have to wait behind too many tokens."""
        return self._budget.next_waits and self._waiting_tokens >= self._policy.waiting_tokens

    def _within_lanes(self) -> list[Candidate]:
        """Return each lane's window.

        Leaves out interactive jobs while they hold their share of the slots and batch jobs wait.
        """
        batch = self._batch[: self._policy.window]
        if batch and self._num_interactive >= self._max_interactive:
            return batch
        return self._interactive[: self._policy.window] + batch


def with_slot_waits(reserved: Sequence[Reserved], max_batch_size: int) -> list[Reserved]:
    """Mark the requests that wait inside the engine, and add the steps until each gets a slot.

    Args:
        reserved: in the order in which they were sent, in which the engine starts them.
        max_batch_size: slots of the engine.
    """
    in_slots, waiting = list(reserved[:max_batch_size]), reserved[max_batch_size:]
    ends = [each.steps_left for each in in_slots]
    heapify(ends)
    for each in waiting:
        ended = each.steps_left + ends[0]
        heapreplace(ends, ended)
        in_slots.append(replace(each, steps_left=ended, waits=True))
    return in_slots


def slot_wait(reserved: Sequence[Reserved], budget: Budget) -> int:
    """Return the steps until the next job that starts has a slot: 0 if one is free."""
    if not budget.waiting_room or not budget.next_waits:
        return 0
    num_waiting = budget.waiting_room - budget.free_slots
    return sorted(each.steps_left for each in reserved)[num_waiting]


def wait_behind_waiting(others: Sequence[Reserved]) -> int:
    """Return the steps until a job has a slot again whose request has ended, but which goes on.

    The first request in the waiting room has its slot now, so it waits behind the rest.
    """
    num_waiting = sum(each.waits for each in others)
    return sorted(each.steps_left for each in others)[num_waiting - 1] if num_waiting else 0


def fits(candidate: Candidate, budget: Budget) -> bool:
    """Return True if this job may start within this budget."""
    if candidate.alone and not budget.idle:
        return False
    return budget.free_slots >= 1 and candidate.room <= budget.free_blocks


def may_join(lane: Lane, reserved: Iterable[Reserved], max_batch_size: int, policy: PackingPolicy) -> bool:
    """Return True if one more job of this lane may run while batch jobs wait."""
    return lane is Lane.BATCH or _num_interactive(reserved) < _max_interactive(max_batch_size, policy)


def _num_interactive(reserved: Iterable[Reserved]) -> int:
    return sum(each.lane is Lane.INTERACTIVE for each in reserved)


def _max_interactive(max_batch_size: int, policy: PackingPolicy) -> int:
    """Return how many jobs the interactive lane may run while batch jobs wait."""
    return max(1, int(policy.interactive_share * max_batch_size))


def in_cohort(head: Candidate, other: Candidate, policy: PackingPolicy) -> bool:
    """Return True if the other waited almost as long as the head, so that their order does not matter."""
    return bool(_cohort(head, [other], policy))


def _cohort(head: Candidate, others: Iterable[Candidate], policy: PackingPolicy) -> list[Candidate]:
    if head.lane is Lane.INTERACTIVE:
        return [each for each in others if each.job_id == head.job_id]
    least = (1 - policy.stretch) * head.waited
    return [
        each
        for each in others
        if (each.waited >= least and each.lane is head.lane and each.group == head.group)
        or each.job_id == head.job_id
    ]


def shadow_of(candidate: Candidate, reserved: Iterable[Reserved], budget: Budget) -> Shadow:
    """Compute when this job can start, and what it leaves free.

    Assumes that no other job starts or grows before.
    """
    slots, blocks, steps = budget.free_slots, budget.free_blocks, 0
    rest = sorted(reserved, key=lambda each: each.steps_left, reverse=True)
    while rest and (candidate.alone or slots < 1 or blocks < candidate.blocks):
        ended = rest.pop()
        slots, blocks, steps = slots + 1, blocks + ended.blocks, max(steps, ended.steps_left)
    return Shadow(steps, free_blocks=0 if candidate.alone else max(0, blocks - candidate.blocks))


def _postpones(first: Candidate, second: Candidate, reserved: Sequence[Reserved], budget: Budget) -> bool:
    """Return True if starting the first job now delays the start of the second."""
    started = Reserved(first.job_id, first.blocks, first.steps + slot_wait(reserved, budget))
    left = replace(
        budget, free_slots=budget.free_slots - 1, free_blocks=budget.free_blocks - first.blocks, idle=False
    )
    after = shadow_of(second, [*reserved, started], left)
    return after.steps > shadow_of(second, reserved, budget).steps


def _kept_out(allowed: Sequence[Candidate], policy: PackingPolicy) -> Candidate | None:
    """Find the first batch job, if it has waited too long for the interactive lane."""
    batch = next((each for each in allowed if each.lane is Lane.BATCH), None)
    if batch is None or batch is allowed[0] or batch.waited < policy.batch_patience:
        return None
    return batch


def _spares_blocks(job: Candidate, kept_out: Candidate, reserved: Sequence[Reserved], budget: Budget) -> bool:
    """Return True if starting the job leaves the blocks to the one kept out.

    Ignores slots: the lanes share those by number.
    """
    many_slots = replace(budget, free_slots=len(reserved) + 2, waiting_room=0)
    return not _postpones(job, kept_out, reserved, many_slots)
