"""Which job starts next, and how much it reserves: the peers, the product's own policy, and its oracle."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from math import ceil
from typing import Protocol

from bench.simulation.world import SimulatedJob, World
from jobs.scheduling.fair_share import rank
from jobs.scheduling.packing import Candidate, PackingPolicy, Reserved, choose, shadow_of, with_slot_waits
from jobs.scheduling.prediction import PredictionPolicy
from jobs.scheduling.segments import Segment, next_segment, whole_blocks


class Sizing(Protocol):
    """Decides what a job reserves for its next segment."""

    def __call__(self, world: World, job: SimulatedJob) -> Segment:
        """Size a segment of one new token up to all that the job may still generate."""


class Policy(Protocol):
    """A way to serve the queue."""

    @property
    def book(self) -> Sizing:
        """How much a segment reserves."""

    def pick(self, world: World) -> SimulatedJob | None:
        """Pick the job to start now; None: no job until something changes."""


def book_tokens(world: World, job: SimulatedJob, new_tokens: int) -> Segment:
    """Size a segment of `new_tokens` new tokens."""
    return whole_blocks(world.capacity, held_tokens=job.held_tokens, new_tokens=new_tokens, left=job.left)


def book_max(world: World, job: SimulatedJob) -> Segment:
    """Reserve all that the caller allows."""
    return book_tokens(world, job, job.left)


def book_truth(world: World, job: SimulatedJob) -> Segment:
    """Reserve what the job will generate, which only an oracle knows."""
    return book_tokens(world, job, job.spec.output_tokens - job.produced)


@dataclass(frozen=True, slots=True)
class BookQuantile:
    """Reserves a fixed quantile of the outputs of jobs that got as far; while too few are known, 2048."""

    quantile: float

    def __call__(self, world: World, job: SimulatedJob) -> Segment:
        """Size the next segment; after a yield, reserve the maximum."""
        if job.num_yields:
            return book_max(world, job)
        peers = [output for output in world.peers(job) if output > job.produced]
        place = ceil((len(peers) + 1) * self.quantile) - 1
        cold = max(2048, job.produced)
        return book_tokens(world, job, peers[place] - job.produced if place < len(peers) else cold)


@dataclass(frozen=True, slots=True)
class BookPredicted:
    """The product's prediction; it must know if the engine has no prefix cache."""

    policy: PredictionPolicy = field(default_factory=PredictionPolicy)

    def __call__(self, world: World, job: SimulatedJob) -> Segment:
        """Size the next segment; after a yield, reserve the maximum."""
        if job.num_yields:
            return book_max(world, job)
        return next_segment(
            world.capacity,
            world.peers(job),
            prompt_tokens=job.spec.prompt_tokens,
            produced=job.produced,
            max_tokens=job.spec.max_tokens,
            policy=self.policy,
        )


@dataclass(frozen=True, slots=True)
class OneAtATime:
    """Starts the next job when the last has ended: a client in a loop."""

    book: Sizing = book_max

    def pick(self, world: World) -> SimulatedJob | None:
        """Pick the oldest if nothing runs."""
        return None if world.running or not world.queue else world.queue[0]


@dataclass(frozen=True, slots=True)
class IntoTheEngine:
    """Starts everything in order of arrival; the engine queues, as with a Celery pool of a task per slot."""

    book: Sizing = book_max

    def pick(self, world: World) -> SimulatedJob | None:
        """Pick the oldest, whether it fits or not."""
        return world.queue[0] if world.queue else None


@dataclass(frozen=True, slots=True)
class FirstFit:
    """Starts the oldest that fits; large jobs wait for luck."""

    book: Sizing = book_max

    def pick(self, world: World) -> SimulatedJob | None:
        """Pick the oldest that fits."""
        return next((job for job, _ in fitting(self, world)), None)


@dataclass(frozen=True, slots=True)
class SmallestFirst:
    """Starts the smallest that fits; large jobs starve."""

    book: Sizing = book_max

    def pick(self, world: World) -> SimulatedJob | None:
        """Pick the smallest that fits."""
        return min(fitting(self, world), key=lambda each: each[1].blocks, default=(None, None))[0]


@dataclass(frozen=True, slots=True)
class Easy:
    """Strict order, except for jobs that do not delay the head; implemented independently of the product."""

    book: Sizing = field(default_factory=lambda: BookQuantile(0.95))

    def pick(self, world: World) -> SimulatedJob | None:
        """Pick the head, or the oldest job that cannot delay it."""
        if not world.queue:
            return None
        head, budget = world.queue[0], world.budget
        shadow = shadow_of(candidate(self, world, head), running(world), budget)
        slots_then = budget.free_slots + sum(
            world.steps_left(job) <= shadow.steps for job in world.running if shadow.steps
        )
        for job, segment in fitting(self, world):
            ends_before = world.steps(job, segment) <= shadow.steps
            leaves_enough = slots_then > 1 and segment.blocks <= shadow.free_blocks
            if job is head or ends_before or leaves_enough:
                return job
        return None


@dataclass(frozen=True, slots=True)
class Packed:
    """The product: `fair_share.rank`, then `packing.choose`, on the values its worker passes."""

    book: Sizing = field(default_factory=BookPredicted)
    packing: PackingPolicy = field(default_factory=PackingPolicy)

    def pick(self, world: World) -> SimulatedJob | None:
        """Pick what the packing chooses among the head of the ranking."""
        if world.budget.free_slots < 1 or not world.queue:
            return None
        window = self.ranked(world)
        choice = choose(
            [candidate(self, world, job) for job in window],
            running(world),
            world.budget,
            max_batch_size=world.capacity.max_batch_size,
            policy=self.packing,
        )
        by_id = {job.job_id: job for job in window}
        if choice.start is None:
            return None
        start = by_id[choice.start]
        start.overtakes = by_id[choice.overtakes] if choice.overtakes is not None else None
        return start

    def ranked(self, world: World) -> list[SimulatedJob]:
        """Rank the head of the queue, tenants by what they were served."""
        queues: dict[str, list[SimulatedJob]] = {}
        for job in world.queue:
            queues.setdefault(job.spec.tenant, []).append(job)
        return rank(
            queues,
            world.accounts,
            num_tokens=lambda job: job.held_tokens + self.book(world, job).new_tokens,
            limit=self.packing.window,
        )


def fitting(policy: Policy, world: World) -> Iterable[tuple[SimulatedJob, Segment]]:
    """Yield queued jobs that fit now, the oldest first, with the segment of each."""
    budget = world.budget
    sized = ((job, policy.book(world, job)) for job in world.queue if budget.free_slots >= 1)
    return (each for each in sized if each[1].blocks <= budget.free_blocks)


def candidate(policy: Policy, world: World, job: SimulatedJob) -> Candidate:
    """Describe a queued job to the packing."""
    segment = policy.book(world, job)
    return Candidate(
        job_id=job.job_id,
        blocks=segment.blocks,
        steps=world.steps(job, segment),
        group=job.spec.tenant,
        unread_tokens=job.held_tokens,
        waited=timedelta(seconds=world.now - job.spec.arrives_at),
    )


def running(world: World) -> list[Reserved]:
    """Describe the running jobs to the packing."""
    own = world.own_blocks()
    described = [replace(running_one(world, job), blocks=own[job.job_id]) for job in world.running]
    return with_slot_waits(described, world.capacity.max_batch_size)


def running_one(world: World, job: SimulatedJob) -> Reserved:
    """Describe a running job: it ends when its reservation does, and may yield once."""
    return Reserved(
        job_id=job.job_id,
        blocks=job.blocks,
        steps_left=world.steps_left(job),
        recompute_tokens=None if job.num_yields else job.held_tokens,
        is_going=job.sequence is not None,
        unread_tokens=0 if job.sequence is None else job.sequence.prompt_tokens - job.sequence.kv,
    )


ONE_AT_A_TIME = "one at a time"
FCFS = "FCFS into the engine"
FIRST_FIT = "first-fit booking max_tokens"
SMALLEST = "smallest first"
EASY = "EASY booking p95"
UNFAIR = "big-first, unfair"
ORACLE = "oracle of lengths"
LONGBATCH = "longbatch"


def policies(*, reuses_prefix: bool = True) -> dict[str, Policy]:
    """Build all policies by name; ours knows whether its engine has a prefix cache."""
    prediction = BookPredicted(PredictionPolicy(reuses_prefix=reuses_prefix))
    return {
        ONE_AT_A_TIME: OneAtATime(),
        FCFS: IntoTheEngine(),
        FIRST_FIT: FirstFit(),
        SMALLEST: SmallestFirst(),
        EASY: Easy(),
        UNFAIR: Packed(prediction, PackingPolicy(stretch=1)),
        ORACLE: Packed(book_truth),
        LONGBATCH: Packed(prediction),
    }
