"""The simulation: jobs arrive, a policy starts them, the virtual engine runs them, segments continue."""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from bench.simulation.engine import Sequence, VirtualEngine
from bench.simulation.engine_model import EngineModel
from bench.simulation.occupancy import Moment
from bench.simulation.policies import Policy, candidate, running_one
from bench.simulation.prefix_cache import PrefixCache
from bench.simulation.workloads import Spec
from bench.simulation.world import SimulatedJob, World
from jobs.scheduling.fair_share import Account
from jobs.scheduling.packing import Candidate
from jobs.scheduling.segments import Segment, extend_or_yield


@dataclass(frozen=True, slots=True)
class Conditions:
    """Conditions that are the same for every policy of a run.

    Attributes:
        model: of the engine.
        gap_s: from a free slot, or a job's arrival, until the next request reaches the engine.
        reuses_prefix: the engine still has a job's tokens if the job continues at once.
        weights: of tenants that differ from 1.
        shares_documents: the engine reuses the blocks of documents that it has read.
        credits_reuse: it starts a request without room for what that reuses, as newer TensorRT-LLM does.
        cache: makes its cache.
    """

    model: EngineModel
    gap_s: float = 0.01
    reuses_prefix: bool = True
    weights: dict[str, float] = field(default_factory=dict)
    shares_documents: bool = False
    credits_reuse: bool = False
    cache: Callable[[], PrefixCache] = PrefixCache


@dataclass(slots=True)
class Outcome:
    """The result of a policy on a workload.

    Attributes:
        jobs: all of them, finished.
        makespan_s: when the last one ended.
        iterations: of the engine.
        longest_queueing_s: longest wait of a request inside the engine before its first iteration.
        most_slots: reserved at any time.
        most_blocks: reserved at any time.
        occupancy: of the engine over time.
        shares: of each tenant: the tokens that every tenant was served up to when its last job started.
        prefilled_tokens: of prompts, computed by the engine.
    """

    jobs: list[SimulatedJob]
    makespan_s: float = 0.0
    iterations: int = 0
    longest_queueing_s: float = 0.0
    most_slots: int = 0
    most_blocks: int = 0
    occupancy: list[Moment] = field(default_factory=list)
    shares: dict[str, Counter[str]] = field(default_factory=dict)
    prefilled_tokens: int = 0

    @property
    def waits_s(self) -> list[float]:
        """Wait of each job from arrival to its first iteration."""
        return [(job.started_at or 0.0) - job.spec.arrives_at for job in self.jobs]

    @property
    def recomputed_share(self) -> float:
        """Recomputed tokens as a share of all tokens of the workload."""
        total = sum(job.spec.prompt_tokens + job.produced for job in self.jobs)
        return sum(job.recomputed_tokens for job in self.jobs) / total


def simulate(specs: Iterable[Spec], policy: Policy, conditions: Conditions) -> Outcome:
    """Run every job of the workload to its end under this policy."""
    jobs = [SimulatedJob(number=number, spec=spec) for number, spec in enumerate(specs)]
    return _Simulation(jobs, policy, conditions).run()


class _Simulation:
    """The state of one run."""

    def __init__(self, jobs: list[SimulatedJob], policy: Policy, conditions: Conditions) -> None:
        self.policy = policy
        self.conditions = conditions
        self.engine = VirtualEngine(
            conditions.model, cache=conditions.cache(), credits_reuse=conditions.credits_reuse
        )
        self.world = World(
            capacity=conditions.model.capacity,
            chunk=conditions.model.chunk,
            cache=self.engine.cache,
            credits_reuse=conditions.credits_reuse,
            model=conditions.model,
        )
        self.world.accounts = {name: Account(weight) for name, weight in conditions.weights.items()}
        self.outcome = Outcome(jobs=jobs)
        self.arriving = sorted(jobs, key=lambda job: (job.spec.arrives_at, job.number), reverse=True)
        self.unstarted = Counter(job.spec.tenant for job in jobs)

    def run(self) -> Outcome:
        while self.arriving or self.world.queue or self.world.running:
            self._arrive()
            while (job := self.policy.pick(self.world)) is not None:
                self._start(job)
            self._note_reservations()
            self._advance()
            for job in tuple(self.world.running):
                if job.sequence is None and job in self.world.running:
                    self._continue(job)
        self.outcome.makespan_s = self.engine.now
        self.outcome.iterations = self.engine.iterations
        self.outcome.occupancy = self.engine.occupancy
        self.outcome.prefilled_tokens = self.engine.prefilled_tokens
        return self.outcome

    def _arrive(self) -> None:
        while self.arriving and self.arriving[-1].spec.arrives_at <= self.engine.now:
            self.world.join(self.arriving.pop())

    def _start(self, job: SimulatedJob) -> None:
        self.world.start(job, self.policy.book(self.world, job))
        self._send(job, cached=0)
        if job.num_segments == 1:
            tenant = job.spec.tenant
            self.unstarted[tenant] -= 1
            if not self.unstarted[tenant]:
                self.outcome.shares[tenant] = self._served()

    def _advance(self) -> None:
        """Advance to the next end or arrival, and record the ended segments."""
        next_arrival = self.arriving[-1].spec.arrives_at if self.arriving else math.inf
        ended = {sequence.job: sequence for sequence in self.engine.advance(next_arrival)}
        self.world.now = self.engine.now
        for job in tuple(self.world.running):
            if job.number in ended:
                self._record(job, ended[job.number])
                if job.produced >= job.spec.output_tokens:
                    self.world.end(job)
                    job.finished_at = self.engine.now

    def _send(self, job: SimulatedJob, *, cached: int) -> None:
        """Send the job's segment to the engine, which still has `cached` of its tokens."""
        known = job.held_tokens - 1 if job.produced else 0  # the last token was never in the cache
        job.recomputed_tokens += max(0, known - cached)
        job.num_segments += 1
        job.sequence = Sequence(
            job=job.number,
            prompt_tokens=job.held_tokens,
            max_new=min(job.segment.new_tokens, job.spec.output_tokens - job.produced),
            blocks=job.blocks,
            kv=cached,
            ready_at=self.engine.now + self.conditions.gap_s,
        )
        if self.conditions.shares_documents:
            size = self.world.capacity.tokens_per_block
            job.sequence.document = job.spec.document
            job.sequence.shared_blocks = job.spec.shared_tokens // size
        self.engine.submit(job.sequence)

    def _record(self, job: SimulatedJob, sequence: Sequence) -> None:
        """Add what the segment produced to the job, which is between segments then."""
        job.produced += sequence.produced
        job.sequence = None
        if sequence.started_at is None:
            return  # it yielded before it reached the engine
        queueing_s = sequence.started_at - sequence.ready_at
        self.outcome.longest_queueing_s = max(self.outcome.longest_queueing_s, queueing_s)
        if job.started_at is None:
            job.started_at = sequence.started_at
            job.found_tokens = sequence.reused_tokens

    def _continue(self, job: SimulatedJob) -> None:
        """Extend the job's reservation, keep it waiting in its slot, or requeue it."""
        wanted = self.policy.book(self.world, job)
        while True:
            running = [running_one(self.world, each) for each in self.world.running if each is not job]
            extension = extend_or_yield(
                running_one(self.world, job),
                running,
                self.world.budget,
                wanted_blocks=wanted.blocks - job.blocks,
                overtaken=self._overtaken(job),
            )
            if extension.yields is None:
                break
            self._yield(next(each for each in self.world.running if each.job_id == extension.yields))
            if extension.yields == job.job_id:
                return
        if extension.blocks:
            job.blocks += extension.blocks
            size = self.world.capacity.tokens_per_block
            new_tokens = min(job.left, self.world.capacity.tokens_in(job.blocks) - job.held_tokens)
            job.segment = Segment(new_tokens, job.blocks)
            cached = (job.held_tokens - 1) // size * size  # whole blocks, and never the last token
            self._send(job, cached=cached if self.conditions.reuses_prefix else 0)

    def _overtaken(self, job: SimulatedJob) -> Candidate | None:
        waiting = job.overtakes
        if waiting is None or waiting not in self.world.queue:
            return None
        return candidate(self.policy, self.world, waiting)

    def _note_reservations(self) -> None:
        blocks = sum(job.blocks for job in self.world.running)
        self.outcome.most_blocks = max(self.outcome.most_blocks, blocks)
        self.outcome.most_slots = max(self.outcome.most_slots, len(self.world.running))

    def _yield(self, job: SimulatedJob) -> None:
        if job.sequence is not None:
            self._record(job, self.engine.withdraw(job.number))
        self.world.give_back(job)

    def _served(self) -> Counter[str]:
        """Count tokens served to each tenant: read or generated for the first time."""
        served: Counter[str] = Counter()
        for job in self.outcome.jobs:
            known = job.held_tokens if job.produced else 0
            reached = max(known, job.sequence.kv if job.sequence else 0)
            served[job.spec.tenant] += max(0, reached - job.reusable_tokens)
        return served
