"""The choice of each iteration's sequences: in-flight batching over paged KV blocks, as pure arithmetic.

The rules are those of TensorRT-LLM's executor with `guaranteed_no_evict` and chunked context:

- at most `max_batch_size` sequences are active; the rest wait in arrival order;
- a sequence starts when every block it can ever need is free, so no started sequence is ever evicted;
- the first sequence that does not fit holds up all after it;
- an iteration gives each generating sequence one token and fills the rest of its token budget with prompt
  chunks, oldest prompt first; the chunk that ends a prompt also yields that sequence's first token.
"""

from collections import deque
from dataclasses import dataclass, field


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
    """

    prompt_tokens: int
    max_tokens: int
    num_prefilled: int = 0
    num_generated: int = 0
    is_stalled: bool = False

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
    """The sequences inside the engine and the blocks they hold. Not thread-safe."""

    capacity: Capacity
    active: list[Sequence] = field(default_factory=list)
    waiting: deque[Sequence] = field(default_factory=deque)

    def add(self, sequence: Sequence) -> None:
        """Append a sequence to the queue, silently cutting its output limit to what fits."""
        room = self.capacity.longest_sequence - sequence.prompt_tokens
        if room < 1:
            message = f"a prompt of {sequence.prompt_tokens} tokens leaves no room for output"
            raise ValueError(message)
        sequence.max_tokens = min(sequence.max_tokens, room)
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence, freeing its slot and blocks or its place in the queue."""
        if sequence in self.active:
            self.active.remove(sequence)
        else:
            self.waiting.remove(sequence)

    def admit(self) -> int:
        """Activate every sequence that can start now. Returns how many started."""
        free = self.capacity.max_blocks - self.reserved_blocks
        num_started = 0
        while self.waiting and len(self.active) < self.capacity.max_batch_size:
            needed = self.reservation(self.waiting[0])
            if needed > free:
                break
            free -= needed
            self.active.append(self.waiting.popleft())
            num_started += 1
        return num_started

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

    @staticmethod
    def advance(step: Iteration) -> None:
        """Record a finished iteration: prompt chunks are cached, its sequences have one more token."""
        for sequence, chunk in step.chunks.items():
            sequence.num_prefilled += chunk
        for sequence in step.yielding:
            sequence.num_generated += 1

    def reservation(self, sequence: Sequence) -> int:
        """Return the blocks reserved for an active sequence: its prompt and all its output."""
        return self.capacity.blocks(sequence.prompt_tokens + sequence.max_tokens)

    @property
    def reserved_blocks(self) -> int:
        """Number of blocks reserved for the active sequences."""
        return sum(map(self.reservation, self.active))

    @property
    def used_blocks(self) -> int:
        """Blocks in use: a sequence's whole prompt from the start, one more whenever the last is full."""
        return sum(self.capacity.blocks(each.prompt_tokens + each.num_generated) for each in self.active)
