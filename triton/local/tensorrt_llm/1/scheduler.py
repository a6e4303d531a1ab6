"""The choice of each iteration's sequences: in-flight batching over paged KV blocks, as pure arithmetic.

The rules are those of TensorRT-LLM's executor with `guaranteed_no_evict` and chunked context:

- at most `max_batch_size` sequences are active; the rest wait in arrival order;
- a sequence starts when every block it can ever need is free, so no started sequence is ever evicted;
- the first sequence that does not fit holds up all after it;
- an iteration gives each generating sequence one token and fills the rest of its token budget with prompt
  chunks, oldest prompt first; the chunk that ends a prompt also yields that sequence's first token.

Sequences that come with their token ids reuse blocks, see `reuse`. The engine starts them by the same rule:
all blocks that one can ever need must be free, even those it will share, unless it credits these, as newer
releases do. What it shares then counts once. A sequence whose next block an active one is just computing
waits for it, and others in the batch's reach may start meanwhile.
"""

from collections import deque
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from .reuse import BlockKey, ReusableBlocks, block_keys


@dataclass(frozen=True)
class Capacity:
    """The limits of the engine.

    Attributes:
        max_batch_size: sequences that may be active at once.
        max_blocks: KV blocks in the pool.
        tokens_per_block: tokens in one block.
        max_num_tokens: tokens that one iteration may process, prompt chunks and generated ones together.
        max_seq_len: prompt and output tokens that one sequence may have.
    """

    max_batch_size: int
    max_blocks: int
    tokens_per_block: int
    max_num_tokens: int
    max_seq_len: int

    def __post_init__(self) -> None:
        if self.max_num_tokens <= self.max_batch_size:
            message = "max_num_tokens must exceed max_batch_size, otherwise no prompt ever advances"
            raise ValueError(message)

    def blocks(self, tokens: int) -> int:
        """Return the number of blocks that hold `tokens` tokens."""
        return -(-tokens // self.tokens_per_block)

    @property
    def longest_sequence(self) -> int:
        """Tokens of the longest sequence that ever starts; the pool may hold less than the model."""
        return min(self.max_seq_len, self.max_blocks * self.tokens_per_block)


@dataclass(frozen=True)
class Roofline:
    """The cost of an iteration, in seconds: `w + c·resident_kv + a·prefill_tokens + q·attention_pairs`."""

    iteration: float
    kv_token: float
    prefill_token: float
    attention_pair: float

    def seconds(self, step: "Iteration") -> float:
        """Return the time that the modelled GPU takes for this iteration."""
        return (
            self.iteration
            + self.kv_token * step.resident_kv
            + self.prefill_token * step.prefill_tokens
            + self.attention_pair * step.attention_pairs
        )


@dataclass(eq=False)
class Sequence:
    """One request inside the engine.

    Attributes:
        prompt_tokens: length of the prompt, at least 1.
        max_tokens: the maximum number of output tokens, at least 1.
        num_prefilled: prompt tokens processed so far.
        num_generated: output tokens generated so far.
        is_stalled: iterations skip it (it keeps its slot and its blocks).
        ids: its prompt `[tokens]`; None: it shares no blocks.
        said: tokens that were generated and are known; kept for `ids`.
        keys: of its prompt's full blocks, but for one that ends with the last token.
        held: keys of its blocks that are reusable, first to last.
        num_reused: blocks that it did not have to compute.
    """

    prompt_tokens: int
    max_tokens: int
    num_prefilled: int = 0
    num_generated: int = 0
    is_stalled: bool = False
    ids: NDArray[np.int32] | None = None
    said: list[int] = field(default_factory=list)
    keys: tuple[BlockKey, ...] = ()
    held: list[BlockKey] = field(default_factory=list)
    num_reused: int = 0

    @property
    def is_generating(self) -> bool:
        """True once its whole prompt is processed."""
        return self.num_prefilled == self.prompt_tokens

    @property
    def kv_tokens(self) -> int:
        """Number of tokens whose keys and values are in the cache."""
        return self.num_prefilled + self.num_generated


@dataclass(frozen=True)
class Iteration:
    """One forward pass, planned but not yet run.

    Attributes:
        chunks: prompt tokens to process, by sequence.
        yielding: the sequences that get one output token each.
        resident_kv: KV tokens read.
        attention_pairs: (query, key) pairs of the prompt chunks.
    """

    chunks: dict[Sequence, int]
    yielding: list[Sequence]
    resident_kv: int
    attention_pairs: int

    @property
    def prefill_tokens(self) -> int:
        """Number of prompt tokens to process."""
        return sum(self.chunks.values())


@dataclass
class Scheduler:
    """The sequences inside the engine and the blocks they hold. Not thread-safe.

    Attributes:
        credits_reuse: a sequence starts without room for the blocks that active ones hold, too.
        used_elsewhere: blocks in use, as told by whoever runs sequences without `ids`. None: it does not.
        num_refusals: times that a waiting sequence found no slot or no room for its blocks.
    """

    capacity: Capacity
    credits_reuse: bool = False
    active: list[Sequence] = field(default_factory=list)
    waiting: deque[Sequence] = field(default_factory=deque)
    reusable: ReusableBlocks = field(default_factory=ReusableBlocks)
    used_elsewhere: int | None = None
    num_refusals: int = 0

    def add(self, sequence: Sequence) -> None:
        """Append a sequence to the queue, silently cutting its output limit to what fits."""
        room = self.capacity.longest_sequence - sequence.prompt_tokens
        if room < 1:
            message = f"a prompt of {sequence.prompt_tokens} tokens leaves no room for output"
            raise ValueError(message)
        sequence.max_tokens = min(sequence.max_tokens, room)
        if sequence.ids is not None:
            sequence.keys = block_keys(sequence.ids[:-1], self.capacity.tokens_per_block)
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence, freeing its slot and blocks or its place in the queue."""
        if sequence not in self.active:
            self.waiting.remove(sequence)
            return
        self.active.remove(sequence)
        if sequence.is_generating:
            sequence.held += self.reusable.store(self._keys_of_output(sequence))
        self.reusable.release(sequence.held)

    def admit(self) -> int:
        """Activate every sequence that can start now. Returns how many started."""
        free = self.capacity.max_blocks - self.reserved_blocks
        awaited = {self._next_key(each) for each in self.active if not each.is_generating} - {None}
        starting = []
        for sequence in islice(self.waiting, self.capacity.max_batch_size - len(self.active)):
            needed = self._room(sequence)
            if needed > free and not awaited:
                self.num_refusals += 1
                break
            key = self._next_key(sequence)
            if key in awaited:
                continue
            if needed > free:
                self.num_refusals += 1
                break
            free -= needed
            awaited |= {key} - {None}
            starting.append(sequence)
        for sequence in starting:
            self._start(sequence)
        self.num_refusals += bool(self.waiting) and len(self.active) == self.capacity.max_batch_size
        return len(starting)

    def _room(self, sequence: Sequence) -> int:
        """Return the blocks that must be free for a waiting sequence to start."""
        credited = self.reusable.num_held(sequence.keys) if self.credits_reuse else 0
        return self.reservation(sequence) - credited

    def _start(self, sequence: Sequence) -> None:
        self.waiting.remove(sequence)
        sequence.num_reused = self.reusable.found(sequence.keys)
        sequence.held = self.reusable.reuse(sequence.keys[: sequence.num_reused])
        sequence.num_prefilled = sequence.num_reused * self.capacity.tokens_per_block
        self.active.append(sequence)
        self._drop()

    def found_elsewhere(self, sequence: Sequence, num_tokens: int) -> None:
        """Record that whoever runs a sequence without `ids` found these tokens of its prompt cached."""
        found = num_tokens // self.capacity.tokens_per_block
        sequence.num_reused += found
        self.reusable.num_reused += found

    def _next_key(self, sequence: Sequence) -> BlockKey | None:
        """Return the key of the first block that the sequence must compute, None if nobody shares it."""
        num_found = sequence.num_reused if sequence in self.active else self.reusable.found(sequence.keys)
        return next(iter(sequence.keys[num_found:]), None)

    def _keys_of_output(self, sequence: Sequence) -> tuple[BlockKey, ...]:
        """Hash the full blocks after the prompt's. The last token generated is not in the cache."""
        if sequence.ids is None:
            return ()
        size = self.capacity.tokens_per_block
        rest = [*sequence.ids[len(sequence.keys) * size :], *sequence.said[:-1]]
        last = sequence.keys[-1] if sequence.keys else b""
        return block_keys(np.array(rest, dtype=np.int32), size, after=last)

    def _drop(self) -> None:
        """Drop reusable blocks whose room is in use."""
        self.reusable.drop_beyond(self.capacity.max_blocks - self.used_blocks)

    def next_iteration(self) -> Iteration | None:
        """Plan the next forward pass. Returns None if no active sequence can run."""
        running = [sequence for sequence in self.active if not sequence.is_stalled]
        if not running:
            return None
        yielding = [sequence for sequence in running if sequence.is_generating]
        budget = self.capacity.max_num_tokens - len(yielding)
        chunks: dict[Sequence, int] = {}
        pairs = 0
        for sequence in running:
            if sequence.is_generating or budget == 0:
                continue
            chunk = min(budget, sequence.prompt_tokens - sequence.num_prefilled)
            budget -= chunk
            chunks[sequence] = chunk
            pairs += chunk * sequence.num_prefilled + chunk * (chunk + 1) // 2
            if sequence.num_prefilled + chunk == sequence.prompt_tokens:
                yielding.append(sequence)
        return Iteration(
            chunks=chunks,
            yielding=yielding,
            resident_kv=sum(sequence.kv_tokens for sequence in running),
            attention_pairs=pairs,
        )

    def advance(self, step: Iteration) -> None:
        """Record a finished iteration: prompt chunks are cached, its sequences have one more token."""
        for sequence, chunk in step.chunks.items():
            sequence.num_prefilled += chunk
            if sequence.is_generating:
                sequence.held += self.reusable.store(sequence.keys[sequence.num_reused :])
        grown = 0
        for sequence in step.yielding:
            grown += (sequence.prompt_tokens + sequence.num_generated) % self.capacity.tokens_per_block == 0
            sequence.num_generated += 1
        if grown:
            self._drop()

    def reservation(self, sequence: Sequence) -> int:
        """Return the blocks reserved for an active sequence: its prompt and all its output."""
        return self.capacity.blocks(sequence.prompt_tokens + sequence.max_tokens)

    @property
    def reserved_blocks(self) -> int:
        """Number of blocks that the active sequences hold or may still need; shared ones count once."""
        own = sum(self.reservation(each) - len(each.held) for each in self.active)
        return self.reusable.num_referenced + own

    @property
    def used_blocks(self) -> int:
        """Blocks in use: a sequence's whole prompt from the start, one more whenever the last is full."""
        if self.used_elsewhere is not None:
            return self.used_elsewhere
        tokens = (each.prompt_tokens + each.num_generated for each in self.active)
        own = sum(map(self.capacity.blocks, tokens)) - sum(len(each.held) for each in self.active)
        return self.reusable.num_referenced + own


def block_counts(capacity: Capacity, sequence: Sequence) -> dict[str, int]:
    """Count a sequence's blocks, by the names of TensorRT-LLM's performance metrics."""
    total = capacity.blocks(sequence.prompt_tokens + max(0, sequence.num_generated - 1))
    return {
        "kv_cache_alloc_total_blocks": total,
        "kv_cache_alloc_new_blocks": total - sequence.num_reused,
        "kv_cache_reused_blocks": sequence.num_reused,
    }
