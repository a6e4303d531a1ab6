"""Many questions about few documents: the workloads ASK and ASK-BIG, their limit, and the policy for them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from uuid import UUID

import numpy as np

from bench.simulation.engine_model import EngineModel, chunk_pairs
from bench.simulation.policies import Packed, candidate, running
from bench.simulation.workloads import Spec, make
from bench.simulation.world import SimulatedJob, World
from jobs.scheduling.packing import Candidate, choose

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


def _read_s(world: World, job: SimulatedJob) -> float:
    """Return how long reading the job's document takes."""
    tokens = job.spec.shared_tokens
    return world.model.prefill_s * tokens + world.model.pair_s * chunk_pairs(tokens, cached=0)


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
        sum(steps) / model.capacity.max_batch_size,
        least_prefill(specs) / model.chunk,
        max(steps, default=0),
    )
    return prefill + model.kv_s * reads + model.weights_s * iterations


@dataclass(frozen=True, slots=True)
class SharedPacked(Packed):
    """The product with prefixes: docs/decisions, "Jobs that share a prefix follow each other".

    A job whose document the engine has (a follower) starts before others of its tenant; one whose document is
    being read waits; everything else is packed as before.

    Younger followers overtake a job that is no peer of theirs for as long as reading their document again
    would take, once: no load makes it wait longer.
    """

    def pick(self, world: World) -> SimulatedJob | None:
        """Pick a follower of the tenant whose turn it is, or what the packing chooses."""
        if world.budget.free_slots < 1 or not world.queue:
            return None
        window, following = self.with_followers(world)
        by_id = {job.job_id: job for job in window}
        first = [job for job in window if job.job_id in following and self._is_due(world, job, window[0])]
        for candidates in (
            [replace(self._sized(world, job), waited=timedelta(0), group=None) for job in first],
            [self._sized(world, job) for job in window],
        ):
            choice = choose(
                candidates,
                running(world),
                world.budget,
                max_batch_size=world.capacity.max_batch_size,
                policy=self.packing,
            )
            if choice.start is not None:
                start = by_id[choice.start]
                self._postpone(world, start)
                start.overtakes = by_id[choice.overtakes] if choice.overtakes is not None else None
                return start
        return None

    def with_followers(self, world: World) -> tuple[list[SimulatedJob], frozenset[UUID]]:
        """Rank the head of the queue with each tenant's followers first, less jobs that wait for a reader."""
        reading = {each.document for each in world.running if not each.held} - {None}
        kept = [job for job in world.queue if world.reusable(job) or job.document not in reading]
        oldest = {each.spec.tenant: each for each in reversed(kept)}

        def may_overtake(job: SimulatedJob) -> bool:
            head = oldest[job.spec.tenant]
            waited, longest = world.now - job.spec.arrives_at, world.now - head.spec.arrives_at
            is_peer = waited >= (1 - self.packing.stretch) * longest
            return bool(world.reusable(job)) and (is_peer or head.postponed_s < _read_s(world, job))

        following = [job for job in kept if may_overtake(job)]
        ids = frozenset(job.job_id for job in following)
        others = [job for job in kept if job.job_id not in ids]
        return Packed.ranked(self, replace(world, queue=[*following, *others])), ids

    def _postpone(self, world: World, start: SimulatedJob) -> None:
        """Note on the tenant's oldest job for how long this start postpones it."""
        head = next(each for each in world.queue if each.spec.tenant == start.spec.tenant)
        if head.document != start.document and world.reusable(start):
            steps = self._sized(world, start).steps / world.capacity.max_batch_size
            resident = start.held_tokens + sum(each.held_tokens for each in world.running)
            head.postponed_s += steps * (world.model.weights_s + world.model.kv_s * resident)

    def _is_due(self, world: World, job: SimulatedJob, head: SimulatedJob) -> bool:
        """Return True if the job's tenant is ahead by at most the document that it has just paid for."""
        account = world.accounts[job.spec.tenant]
        lead = account.served - world.accounts[head.spec.tenant].served
        return lead * account.weight <= job.spec.shared_tokens

    def _sized(self, world: World, job: SimulatedJob) -> Candidate:
        found, size = candidate(self, world, job), world.reusable(job)
        chunks = -(-size * world.capacity.tokens_per_block // world.chunk)
        credited = size if world.credits_reuse and self._is_held(world, job) else 0
        return replace(found, blocks=found.blocks - credited, steps=found.steps - chunks)

    def _is_held(self, world: World, job: SimulatedJob) -> bool:
        """Return True if a running job keeps the document's blocks for as long as it runs."""
        return any(each.document == job.document and each.held for each in world.running)
