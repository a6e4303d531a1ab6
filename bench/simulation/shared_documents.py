"""Many questions about few documents: the workloads ASK and ASK-BIG, their limit, and the policy for them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bench.simulation.engine_model import EngineModel, chunk_pairs
from bench.simulation.policies import Packed, candidate, running
from bench.simulation.workloads import Spec, make
from bench.simulation.world import SimulatedJob, World
from jobs.scheduling.fair_share import rank
from jobs.scheduling.packing import Candidate, Reuse
from jobs.scheduling.prediction import likely
from jobs.scheduling.prefixes.followers import choose_follower, with_reuse

QUESTION_TOKENS = 60


def ask(
    *,
    seed: int,
    max_tokens: int = 2048,
    document_tokens: int = 60_000,
    num_documents: int = 8,
    num_questions: int = 16,
) -> list[Spec]:
    """Make questions about documents of one length, submitted question by question."""
    rng = np.random.default_rng([seed, *b"ASK"])
    return _questions(rng, [document_tokens] * num_documents, num_questions, max_tokens)


def ask_big(*, seed: int, max_tokens: int = 2048) -> list[Spec]:
    """Make 25 questions about each of 40 documents of 8,000 to 90,000 tokens."""
    rng = np.random.default_rng([seed, *b"ASK-BIG"])
    return _questions(rng, [int(each) for each in rng.integers(8_000, 90_000, 40)], 25, max_tokens)


def asker_and_other(seed: int) -> list[Spec]:
    """Make one tenant's 96 questions about 12 documents, and MIX-20 of another, all at t=0."""
    asked = ask(seed=seed, num_documents=12, num_questions=8)
    other = make("MIX-20", seed=seed, num_jobs=120, max_tokens=2048)
    return [replace(each, tenant="asker") for each in asked] + [
        replace(each, tenant="other") for each in other
    ]


def _questions(
    rng: np.random.Generator, documents: Sequence[int], num_questions: int, max_tokens: int
) -> list[Spec]:
    return [
        Spec(
            prompt_tokens=length + QUESTION_TOKENS,
            output_tokens=min(max(1, round(rng.lognormal(np.log(150), 0.5))), max_tokens),
            max_tokens=max_tokens,
            template="ask",
            document=number,
            shared_tokens=length,
        )
        for _ in range(num_questions)
        for number, length in enumerate(documents)
    ]


def least_prefill(specs: Sequence[Spec]) -> int:
    """Count the prompt tokens that must be computed if each document is read once."""
    documents = {spec.document: spec.shared_tokens for spec in specs if spec.document is not None}
    return sum(documents.values()) + sum(spec.prompt_tokens - spec.shared_tokens for spec in specs)


def limit_s(model: EngineModel, specs: Sequence[Spec]) -> float:
    """Return the least time in which any policy could serve jobs that share documents.

    Each document is read once; every answer reads the cache of its whole prompt. What fits together does not
    bind: blocks are shared.
    """
    read: set[int] = set()
    prefill = reads = 0.0
    steps = []
    for spec in specs:
        is_first = spec.document is None or spec.document not in read
        read |= set() if spec.document is None else {spec.document}
        cached = 0 if is_first else spec.shared_tokens
        new, decodes = spec.prompt_tokens - cached, spec.output_tokens - 1
        prefill += model.prefill_s * new + model.pair_s * chunk_pairs(new, cached=cached)
        chunks = range(spec.prompt_tokens, cached, -model.chunk)
        reads += sum(chunks) + decodes * spec.prompt_tokens + decodes * (decodes + 1) / 2
        steps.append(len(chunks) + decodes)
    iterations = max(
        sum(steps) / model.capacity.max_batch_size, least_prefill(specs) / model.chunk, max(steps, default=0)
    )
    return prefill + model.kv_s * reads + model.weights_s * iterations


@dataclass(frozen=True, slots=True)
class SharedPacked(Packed):
    """The product on an engine that reuses prefixes: `choose_follower`, on the values of its claims.

    Claims see each tenant's first jobs, and the first followers of every document that the engine has.
    """

    def pick(self, world: World) -> SimulatedJob | None:
        """Pick what the planner chooses, and note what it shares and postpones."""
        if world.budget.free_slots < 1 or not world.queue:
            return None
        queue = self._ranked(world)
        candidates = [self._candidate(world, job) for job in queue]
        choice = choose_follower(
            candidates,
            running(world),
            world.budget,
            postponed={job.job_id: job.postponed_steps for job in world.queue if job.postponed_steps},
            max_batch_size=world.capacity.max_batch_size,
            policy=self.packing,
        )
        by_id = {job.job_id: job for job in world.queue}
        if choice.start is None:
            return None
        start, chosen = next(
            each for each in zip(queue, candidates, strict=True) if each[0].job_id == choice.start
        )
        start.overtakes = by_id[choice.overtakes] if choice.overtakes is not None else None
        if choice.postpones is not None:
            postponed_id, steps = choice.postpones
            start.delays = by_id[postponed_id]
            start.expected_output = (
                start.produced + self.book(world, start).new_tokens - chosen.unlikely_tokens
            )
            start.delays.postponed_steps += steps
        world.share(start, chosen.reuse.blocks)
        return start

    def _ranked(self, world: World) -> list[SimulatedJob]:
        """Rank the jobs that a claim reads."""
        first: dict[str, list[SimulatedJob]] = {}
        following: Counter[int] = Counter()
        for job in world.queue:
            mine = first.setdefault(job.spec.tenant, [])
            is_follower = job.document is not None and world.reusable(job) > 0
            following[job.document or 0] += is_follower
            is_among = is_follower and following[job.document or 0] <= world.capacity.max_batch_size
            if is_among or (len(mine) < self.packing.window and not world.is_waiting(job)):
                mine.append(job)
        return rank(
            first,
            world.accounts,
            num_tokens=lambda job: (
                job.held_tokens - world.reusable_tokens(job) + self.book(world, job).new_tokens
            ),
            limit=len(world.queue),
        )

    def _candidate(self, world: World, job: SimulatedJob) -> Candidate:
        account, segment = world.accounts[job.spec.tenant], self.book(world, job)
        likely_tokens = likely(world.peers(job), produced=job.produced) or segment.new_tokens
        return replace(
            with_reuse(candidate(self, world, job), _reuse(world, job), is_credited=world.credits_reuse),
            tenant=job.spec.tenant,
            family=job.document,
            lead=account.served,
            weight=account.weight,
            is_waiting=world.is_waiting(job),
            unlikely_tokens=max(0, segment.new_tokens - likely_tokens),
        )


def _reuse(world: World, job: SimulatedJob) -> Reuse:
    tokens, reader = world.reusable_tokens(job), world.reader(job.document)
    return Reuse(tokens) if reader is None else Reuse(tokens, world.reusable(job), reader.job_id)
