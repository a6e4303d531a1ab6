"""A virtual-time engine: in-flight batching with chunked prefill, exact in iterations, fast between them."""

import math
from collections import deque
from dataclasses import dataclass, field
from itertools import islice

from bench.simulation.engine_model import EngineModel, chunk_pairs, decode_s
from bench.simulation.occupancy import Moment
from bench.simulation.prefix_cache import PrefixCache, referenced, reserved_blocks


@dataclass(slots=True)
class Sequence:
    """One request inside the engine.

    Attributes:
        job: the caller's number for it.
        prompt_tokens: must be in the cache before the first new token.
        max_new: tokens that it will generate before it ends.
        blocks: reserved as guaranteed_no_evict does: prompt and maximum output, rounded up.
        kv: tokens in the cache; starts at what a prefix cache still holds.
        produced: tokens generated.
        ready_at: when it reaches the engine, in seconds.
        started_at: when its first iteration began, in seconds; None: it waits.
        document: what its prompt begins with; None: it shares nothing.
        shared_blocks: full blocks of the document.
        held: of these, those that it reuses or that others may reuse.
        reused_tokens: that it did not compute.
    """

    job: int
    prompt_tokens: int
    max_new: int
    blocks: int
    kv: int = 0
    produced: int = 0
    ready_at: float = 0.0
    started_at: float | None = None
    document: int | None = None
    shared_blocks: int = 0
    held: int = 0
    reused_tokens: int = 0

    @property
    def prefilling(self) -> bool:
        """True while part of the prompt is still to be computed."""
        return self.kv < self.prompt_tokens

    @property
    def finished(self) -> bool:
        """True once it has generated all its tokens."""
        return self.produced >= self.max_new


@dataclass(slots=True)
class VirtualEngine:
    """Serves requests in order of arrival: the first one that does not fit holds up all later ones.

    Attributes:
        now: seconds since the start.
        iterations: done so far.
        occupancy: a moment for every request that joins or leaves.
        prefilled_tokens: of prompts, computed so far.
        cache: what it has of documents; stays empty if requests name none.
        credits_reuse: a request starts without room for what it shares with an active one.
    """

    model: EngineModel
    now: float = 0.0
    iterations: int = 0
    active: list[Sequence] = field(default_factory=list)
    waiting: deque[Sequence] = field(default_factory=deque)
    occupancy: list[Moment] = field(default_factory=list)
    prefilled_tokens: int = 0
    cache: PrefixCache = field(default_factory=PrefixCache)
    credits_reuse: bool = False

    def submit(self, sequence: Sequence) -> None:
        """Send the request: it queues at the engine at its `ready_at`."""
        self.waiting.append(sequence)

    def withdraw(self, job: int) -> Sequence:
        """Take this job's request out of the engine and free its blocks."""
        sequence = next(each for each in [*self.active, *self.waiting] if each.job == job)
        if sequence in self.active:
            self._leave([sequence])
        else:
            self.waiting.remove(sequence)
        return sequence

    def advance(self, until: float) -> list[Sequence]:
        """Run to the first iteration boundary at which a request ended, or to `until`.

        Returns:
            The requests that ended, no longer active; the clock never stops inside an iteration.
        """
        while True:
            self._admit()
            limit = min([until, *(each.ready_at for each in self.waiting if each.ready_at > self.now)])
            if self.now >= until:
                return []
            if not self.active:
                if limit == math.inf:
                    return []
                self.now = limit
                continue
            if any(each.prefilling for each in self.active):
                self._prefill_iteration()
            else:
                self._decode(limit)
            ended = [each for each in self.active if each.finished]
            if ended:
                self._leave(ended)
                return ended

    def _admit(self) -> None:
        """Start requests in order of arrival; one whose document is being read waits for that."""
        capacity = self.model.capacity
        reading = {each.document for each in self.active if each.prefilling} - {None}
        arrived = (each for each in self.waiting if each.ready_at <= self.now)
        for sequence in tuple(islice(arrived, capacity.max_batch_size - len(self.active))):
            found = min(self.cache.found(sequence.document), sequence.shared_blocks)
            if sequence.document in reading and found < sequence.shared_blocks:
                continue
            needed = sequence.blocks
            if self.credits_reuse and sequence.document is not None:
                needed -= min(found, referenced(self.active).get(sequence.document, 0))
            if needed > capacity.max_blocks - reserved_blocks(self.active):
                return
            self._start(sequence, found)
            if sequence.document is not None:
                reading.add(sequence.document)

    def _start(self, sequence: Sequence, found: int) -> None:
        self.waiting.remove(sequence)
        if sequence.started_at is None:
            sequence.started_at = self.now
        sequence.held = found
        sequence.reused_tokens = found * self.model.capacity.tokens_per_block
        sequence.kv = max(sequence.kv, sequence.reused_tokens)
        self.active.append(sequence)
        self.cache.touch(sequence.document)
        self._drop()
        self._note()

    def _leave(self, ended: list[Sequence]) -> None:
        self.active = [each for each in self.active if each not in ended]
        for each in ended:
            full_blocks = each.kv // self.model.capacity.tokens_per_block
            self.cache.leave(each.job, full_blocks - each.held)
            self.cache.touch(each.document)
        self._note()

    def _drop(self) -> None:
        """Drop what was kept of documents where its room is in use."""
        if self.cache.blocks:
            own = (self.model.capacity.blocks_of(each.prompt_tokens + each.produced) for each in self.active)
            used = reserved_blocks(self.active) - sum(each.blocks for each in self.active) + sum(own)
            self.cache.drop(self.active, self.model.capacity.max_blocks - used)

    def _prefill_iteration(self) -> None:
        """Prefill up to `chunk` tokens in order; decode a token of every other request."""
        model, budget = self.model, self.model.chunk
        took = model.weights_s
        for each in self.active:
            if each.prefilling:
                tokens = min(budget, each.prompt_tokens - each.kv)
                if not tokens:
                    continue
                budget -= tokens
                self.prefilled_tokens += tokens
                took += model.prefill_s * tokens + model.pair_s * chunk_pairs(tokens, cached=each.kv)
                each.kv += tokens
                each.produced += not each.prefilling  # the last chunk also yields the first token
                self._offer(each)
            else:
                each.kv += 1
                each.produced += 1
            took += model.kv_s * each.kv
        self._pass(took, iterations=1)

    def _offer(self, sequence: Sequence) -> None:
        """Let others reuse a document that has been read."""
        if sequence.document is not None and not sequence.prefilling:
            self.cache.store(sequence.document, sequence.shared_blocks)
            sequence.held = sequence.shared_blocks

    def _decode(self, limit: float) -> None:
        """Decode to the first end of a request, or the first boundary at or after `limit`."""
        kv_tokens = sum(each.kv for each in self.active)
        num_sequences = len(self.active)
        most = min(each.max_new - each.produced for each in self.active)
        steps = self._steps_until(limit, most, num_sequences=num_sequences, kv_tokens=kv_tokens)
        for each in self.active:
            each.kv += steps
            each.produced += steps
        took = decode_s(self.model, steps, num_sequences=num_sequences, kv_tokens=kv_tokens)
        self._pass(took, iterations=steps)

    def _steps_until(self, limit: float, most: int, *, num_sequences: int, kv_tokens: int) -> int:
        low, high = 1, most
        if limit == math.inf:
            return high
        while low < high:
            middle = (low + high) // 2
            took = decode_s(self.model, middle, num_sequences=num_sequences, kv_tokens=kv_tokens)
            low, high = (low, middle) if self.now + took >= limit else (middle + 1, high)
        return low

    def _note(self) -> None:
        blocks = reserved_blocks(self.active)
        tokens = sum(each.kv for each in self.active)
        self.occupancy.append(Moment(self.now, len(self.active), blocks, tokens))

    def _pass(self, seconds: float, *, iterations: int) -> None:
        self.now += seconds
        self.iterations += iterations
