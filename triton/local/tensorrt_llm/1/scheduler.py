"""Which sequences an iteration works on: in-flight batching over paged KV blocks, as pure arithmetic.

The rules are those of TensorRT-LLM's executor with `guaranteed_no_evict` and chunked context:

- at most `max_batch_size` sequences are active; the rest wait in arrival order;
- a sequence starts when every block it can ever need is free, so nothing started is ever evicted;
- the first sequence that does not fit holds up all behind it;
- an iteration gives each generating sequence one token and fills the rest of its token budget with prompt
  chunks, oldest prompt first; the chunk that ends a prompt also yields that sequence's first token.
"""

from collections import deque
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Capacity:
    """What the engine was built for.

    Attributes:
        max_batch_size: sequences that may be active at once.
        max_blocks: KV blocks in the pool.
        tokens_per_block: tokens that one block holds.
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
            message = "max_num_tokens must exceed max_batch_size, else no prompt ever advances"
            raise ValueError(message)

    def blocks(self, tokens: int) -> int:
        """The number of blocks that hold so many tokens."""
        return -(-tokens // self.tokens_per_block)

    @property
    def longest_sequence(self) -> int:
        """Tokens of the longest sequence that is ever started; the pool may hold less than the model."""
        return min(self.max_seq_len, self.max_blocks * self.tokens_per_block)


@dataclass(frozen=True)
class Roofline:
    """What an iteration costs, in seconds: `w + c·resident_kv + a·prefill_tokens + q·attention_pairs`."""

    iteration: float
    kv_token: float
    prefill_token: float
    attention_pair: float

    def seconds(self, step: "Iteration") -> float:
        """The time that the modelled GPU takes for this iteration."""
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
        max_tokens: output tokens after which it ends at the latest, at least 1.
        num_prefilled: prompt tokens processed so far.
        num_generated: output tokens so far.
        is_stalled: whether iterations pass it by (it keeps its slot and its blocks).
    """

    prompt_tokens: int
    max_tokens: int
    num_prefilled: int = 0
    num_generated: int = 0
    is_stalled: bool = False

    @property
    def is_generating(self) -> bool:
        """Whether its whole prompt is processed."""
        return self.num_prefilled == self.prompt_tokens

    @property
    def kv_tokens(self) -> int:
        """Tokens whose keys and values it keeps in the cache."""
        return self.num_prefilled + self.num_generated


@dataclass(frozen=True)
class Iteration:
    """One forward pass, chosen but not yet carried out.

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
        """Prompt tokens processed."""
        return sum(self.chunks.values())


@dataclass
class Scheduler:
    """The sequences inside the engine and the blocks they hold; not safe for several threads."""

    capacity: Capacity
    active: list[Sequence] = field(default_factory=list)
    waiting: deque[Sequence] = field(default_factory=deque)

    def add(self, sequence: Sequence) -> None:
        """The sequence waits at the end of the queue; its output limit is cut, in silence, to what fits."""
        room = self.capacity.longest_sequence - sequence.prompt_tokens
        if room < 1:
            message = f"a prompt of {sequence.prompt_tokens} tokens leaves no room for output"
            raise ValueError(message)
        sequence.max_tokens = min(sequence.max_tokens, room)
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """The sequence holds neither slot nor block, nor a place in the queue."""
        if sequence in self.active:
            self.active.remove(sequence)
        else:
            self.waiting.remove(sequence)

    def admit(self) -> int:
        """Every sequence that may start now is active; returns how many were started."""
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
        """The work of the next forward pass; None when every active sequence is stalled or none is there."""
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
        """The iteration is done: its prompt chunks are in the cache, its sequences have a token more."""
        for sequence, chunk in step.chunks.items():
            sequence.num_prefilled += chunk
        for sequence in step.yielding:
            sequence.num_generated += 1

    def reservation(self, sequence: Sequence) -> int:
        """Blocks set aside for a sequence while it is active: for its prompt and all it may ever say."""
        return self.capacity.blocks(sequence.prompt_tokens + sequence.max_tokens)

    @property
    def reserved_blocks(self) -> int:
        """Blocks set aside for the active sequences."""
        return sum(map(self.reservation, self.active))

    @property
    def used_blocks(self) -> int:
        """Blocks in use: a sequence's whole prompt from its start, one more whenever the last is full."""
        return sum(self.capacity.blocks(each.prompt_tokens + each.num_generated) for each in self.active)
