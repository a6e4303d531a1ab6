"""A virtual-time engine: in-flight batching with chunked prefill, exact in iterations, fast between them."""

import math
from collections import deque
from dataclasses import dataclass, field

from bench.simulation.engine_model import EngineModel, chunk_pairs, decode_s
from bench.simulation.occupancy import Moment


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
    """

    job: int
    prompt_tokens: int
    max_new: int
    blocks: int
    kv: int = 0
    produced: int = 0
    ready_at: float = 0.0
    started_at: float | None = None

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
    """

    model: EngineModel
    now: float = 0.0
    iterations: int = 0
    active: list[Sequence] = field(default_factory=list)
    waiting: deque[Sequence] = field(default_factory=deque)
    occupancy: list[Moment] = field(default_factory=list)

    def submit(self, sequence: Sequence) -> None:
        """Send the request: it queues at the engine at its `ready_at`."""
        self.waiting.append(sequence)

    def withdraw(self, job: int) -> Sequence:
        """Take this job's request out of the engine and free its blocks."""
        sequence = next(each for each in [*self.active, *self.waiting] if each.job == job)
        if sequence in self.active:
            self.active.remove(sequence)
            self._note()
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
                self.active = [each for each in self.active if not each.finished]
                self._note()
                return ended

    def _admit(self) -> None:
        capacity = self.model.capacity
        free = capacity.max_blocks - sum(each.blocks for each in self.active)
        arrived = [each for each in self.waiting if each.ready_at <= self.now]
        for sequence in arrived:
            if len(self.active) >= capacity.max_batch_size or sequence.blocks > free:
                return
            free -= sequence.blocks
            self.waiting.remove(sequence)
            if sequence.started_at is None:
                sequence.started_at = self.now
            self.active.append(sequence)
            self._note()

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
                took += model.prefill_s * tokens + model.pair_s * chunk_pairs(tokens, cached=each.kv)
                each.kv += tokens
                each.produced += not each.prefilling  # the last chunk also yields the first token
            else:
                each.kv += 1
                each.produced += 1
            took += model.kv_s * each.kv
        self._pass(took, iterations=1)

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
        blocks = sum(each.blocks for each in self.active)
        tokens = sum(each.kv for each in self.active)
        self.occupancy.append(Moment(self.now, len(self.active), blocks, tokens))

    def _pass(self, seconds: float, *, iterations: int) -> None:
        self.now += seconds
        self.iterations += iterations
