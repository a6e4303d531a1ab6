"""Which queued job an engine starts next, so that it is full and nobody starves: pure arithmetic.

The head of the ranking is never postponed by a job that came later: while it does not fit, others start
beside it only if its start stays where it is (EASY backfill). Among jobs that waited about as long, order
matters to nobody, so the largest that fits starts: big jobs first, small ones into the holes.

Time is counted in engine iterations ("steps"). Every running job advances one step per iteration, however
long it takes, so their ends can be compared without a clock.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from uuid import UUID

from jobs.engines.capacity import Budget
from jobs.states import Lane


@dataclass(frozen=True, slots=True)
class PackingPolicy:
    """What the packing may do to a job that waits.

    Attributes:
        window: candidates of each lane, from the head of the ranking, that are looked at.
        stretch: jobs of a group are peers when the younger waited at least 1 - `stretch` as long. A job is
            overtaken only by peers, and those come to an end: it waits at most 1 / (1 - `stretch`) of
            what it would in order of arrival. Jobs submitted together are peers from the start.
        interactive_share: of the slots, that the interactive lane may hold while batch waits.
        batch_patience: after it the interactive lane leaves the first batch job the blocks that it needs.
        preempt_after: tokens that a batch job has generated before it may make room for an interactive one.
        max_preemptions: times that it may have to.
    """

    window: int = 96
    stretch: float = 0.05
    interactive_share: float = 0.75
    batch_patience: timedelta = timedelta(minutes=10)
    preempt_after: int = 256
    max_preemptions: int = 2


@dataclass(frozen=True, slots=True)
class Running:
    """One reservation on the engine.

    Attributes:
        job_id: whose.
        blocks: KV blocks booked.
        steps_left: engine iterations until it is expected to end.
        lane: of the job.
        recompute_tokens: what it would have to read again if it yielded; None: it must not yield.
        new_tokens: generated since it started.
        num_preemptions: times it made room for the interactive lane.
        is_going: its end is only a matter of time; False: it waits for blocks to go on.
        is_leaving: it was asked to end, and will have left in a moment.
    """

    job_id: UUID
    blocks: int
    steps_left: int
    lane: Lane = Lane.BATCH
    recompute_tokens: int | None = None
    new_tokens: int = 0
    num_preemptions: int = 0
    is_going: bool = True
    is_leaving: bool = False


@dataclass(frozen=True, slots=True)
class Candidate:
    """One queued job.

    Attributes:
        job_id: the job.
        blocks: what it books if it starts.
        steps: engine iterations from its start to its expected end.
        lane: of the job.
        group: tenant and priority; only inside a group is order decided by age alone.
        waited: since it was queued.
        alone: it is suspected of killing engines and runs with nothing beside it.
    """

    job_id: UUID
    blocks: int
    steps: int
    lane: Lane = Lane.BATCH
    group: Hashable = None
    waited: timedelta = timedelta(0)
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Shadow:
    """The reservation of a job: when it can start at the latest if nobody postpones it.

    Attributes:
        steps: engine iterations until enough running jobs will have ended; 0: it fits now.
        free_blocks: that it leaves free when it starts.
    """

    steps: int
    free_blocks: int


@dataclass(frozen=True, slots=True)
class Choice:
    """The outcome of one look at the queue.

    Attributes:
        start: the job to start now; None: nothing may start.
        overtakes: a better ranked job whose reservation the start respects, and its growth must too.
    """

    start: UUID | None
    overtakes: UUID | None = None


def choose(
    candidates: Sequence[Candidate],
    running: Sequence[Running],
    budget: Budget,
    *,
    max_batch_size: int,
    policy: PackingPolicy,
) -> Choice:
    """The largest peer of the head that fits, else the first in rank that does not postpone the head.

    Args:
        candidates: queued jobs in rank order: interactive ones first, then by `fair_share.rank`.
        running: every reservation on the engine, draining ones included.
        budget: what the engine has free, as `capacity.free_budget` says.
        max_batch_size: slots of the engine.
        policy: what may be done to a job that waits.
    """
    ours = budget.free_blocks + sum(each.blocks for each in running)  # somebody else may hold the rest
    possible = [each for each in candidates if each.blocks <= ours]
    allowed = _within_lanes(possible, running, max_batch_size, policy)
    fitting = [each for each in allowed if fits(each, budget)]
    if not fitting:
        return Choice(start=None)
    head, kept_out = allowed[0], _kept_out(allowed, policy)
    peers = [each for each in fitting if are_peers(head, each, policy)]
    for each in sorted(peers, key=lambda peer: -peer.blocks):  # equals stay in rank order
        if kept_out is None or _spares_blocks(each, kept_out, running, budget):
            return Choice(each.job_id)
    for each in fitting:
        if each is kept_out:
            return Choice(each.job_id)
        spared = kept_out is None or _spares_blocks(each, kept_out, running, budget)
        if spared and not are_peers(head, each, policy) and not _postpones(each, head, running, budget):
            return Choice(each.job_id, overtakes=head.job_id)
    return Choice(start=None)


def fits(candidate: Candidate, budget: Budget) -> bool:
    """Whether this job may start within this budget."""
    if candidate.alone and not budget.idle:
        return False
    return budget.free_slots >= 1 and candidate.blocks <= budget.free_blocks


def may_join(lane: Lane, running: Iterable[Running], max_batch_size: int, policy: PackingPolicy) -> bool:
    """Whether one more job of this lane may run while batch jobs wait."""
    held = sum(each.lane is Lane.INTERACTIVE for each in running)
    return lane is Lane.BATCH or held < max(1, int(policy.interactive_share * max_batch_size))


def are_peers(head: Candidate, other: Candidate, policy: PackingPolicy) -> bool:
    """Whether the two waited so nearly as long that it matters to nobody which of them is first."""
    if other.job_id == head.job_id:
        return True
    if head.lane is Lane.INTERACTIVE or (other.lane, other.group) != (head.lane, head.group):
        return False
    return other.waited >= (1 - policy.stretch) * head.waited


def shadow_of(candidate: Candidate, running: Iterable[Running], budget: Budget) -> Shadow:
    """When this job can start, and what it leaves free, if nobody else starts or grows before."""
    slots, blocks, steps = budget.free_slots, budget.free_blocks, 0
    rest = sorted(running, key=lambda each: each.steps_left, reverse=True)
    while rest and (candidate.alone or slots < 1 or blocks < candidate.blocks):
        ended = rest.pop()
        slots, blocks, steps = slots + 1, blocks + ended.blocks, max(steps, ended.steps_left)
    return Shadow(steps, free_blocks=0 if candidate.alone else max(0, blocks - candidate.blocks))


def _postpones(first: Candidate, second: Candidate, running: Sequence[Running], budget: Budget) -> bool:
    """Whether the second can start only later if the first starts now."""
    started = Running(first.job_id, first.blocks, first.steps)
    left = Budget(budget.free_slots - 1, budget.free_blocks - first.blocks, idle=False)
    after = shadow_of(second, [*running, started], left)
    return after.steps > shadow_of(second, running, budget).steps


def _within_lanes(
    candidates: Sequence[Candidate], running: Iterable[Running], max_batch_size: int, policy: PackingPolicy
) -> list[Candidate]:
    """Each lane's window, but nothing interactive while it holds its share of the slots and batch waits."""
    batch = [each for each in candidates if each.lane is Lane.BATCH][: policy.window]
    if batch and not may_join(Lane.INTERACTIVE, running, max_batch_size, policy):
        return batch
    return [each for each in candidates if each.lane is Lane.INTERACTIVE][: policy.window] + batch


def _kept_out(allowed: Sequence[Candidate], policy: PackingPolicy) -> Candidate | None:
    """The first batch job, if it has waited too long behind the interactive lane."""
    batch = next((each for each in allowed if each.lane is Lane.BATCH), None)
    if batch is None or batch is allowed[0] or batch.waited < policy.batch_patience:
        return None
    return batch


def _spares_blocks(job: Candidate, kept_out: Candidate, running: Sequence[Running], budget: Budget) -> bool:
    """Whether its start leaves the blocks to the one kept out; slots are shared between lanes by number."""
    many_slots = replace(budget, free_slots=len(running) + 2)
    return not _postpones(job, kept_out, running, many_slots)
