"""What an engine can hold and what is left of it: pure arithmetic over slots and KV-cache blocks.

The engine reserves `ceil((prompt_tokens + max_tokens) / tokens_per_block)` blocks for a request under
`guaranteed_no_evict`, and a constant on top for a model with windows or recurrent states. We reserve exactly
that before we send the request, so no request waits for blocks inside the engine. Those that wait there for a
slot are in its waiting room, and have their blocks, too. `packing` decides which job starts next.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

# Prompt tokens that an engine reads in one iteration; affects only the order of expected ends, and estimates.
ITERATION_TOKENS = 8192


@dataclass(frozen=True, slots=True)
class Capacity:
    """What one engine can hold.

    Attributes:
        max_batch_size: sequences that decode together (slots).
        max_blocks: KV-cache blocks in the pool.
        tokens_per_block: tokens in one block.
        max_input_len: most prompt tokens of one job.
        max_seq_len: most prompt + output tokens of one job.
        blocks_per_sequence: blocks that a sequence takes whatever its length.
        waiting_room: requests that may wait inside the engine for a slot.
    """

    max_batch_size: int
    max_blocks: int
    tokens_per_block: int
    max_input_len: int
    max_seq_len: int
    blocks_per_sequence: int = 0
    waiting_room: int = 0

    @property
    def max_tokens_in_pool(self) -> int:
        """Tokens of one sequence that the whole KV cache holds."""
        return self.tokens_in(self.max_blocks)

    @property
    def max_tokens_in_share(self) -> int:
        """Tokens of one sequence that the KV cache holds for each request, those that wait included."""
        return self.tokens_in(self.max_blocks // (self.max_batch_size + self.waiting_room))

    def blocks_of(self, num_tokens: int) -> int:
        """Compute the blocks of a sequence of `num_tokens` tokens."""
        return blocks_for(num_tokens, self.tokens_per_block) + self.blocks_per_sequence

    def tokens_in(self, blocks: int) -> int:
        """Compute the tokens that a sequence can have in `blocks` blocks."""
        return max(0, blocks - self.blocks_per_sequence) * self.tokens_per_block


@dataclass(frozen=True, slots=True)
class Excess:
    """Why a job can never run on an engine.

    Attributes:
        prompt_tokens: of the job.
        max_tokens: output tokens that it asks for.
        limit: the limit that it exceeds, in tokens.
        limit_name: max_input_len, max_seq_len or kv_cache_tokens.
    """

    prompt_tokens: int
    max_tokens: int
    limit: int
    limit_name: str


@dataclass(frozen=True, slots=True)
class ReservedBlocks:
    """One reservation on the engine.

    Attributes:
        blocks: KV blocks that it holds.
        alone: nothing else may start while it holds them.
    """

    blocks: int
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Budget:
    """What may still start now.

    Attributes:
        free_slots: requests that may still be sent: the slots without a reservation and the waiting room.
            Negative after `without_waiting_room` while requests wait there.
        free_blocks: KV blocks without a reservation.
        idle: there is no reservation at all.
        waiting_room: how many of the free slots, the last ones, are places in the waiting room. A request
            there waits inside the engine until another one ends.
    """

    free_slots: int
    free_blocks: int
    idle: bool
    waiting_room: int = 0

    @property
    def next_waits(self) -> bool:
        """True if every slot is taken: the next request waits inside the engine, if it may be sent at all."""
        return self.free_slots <= self.waiting_room

    def after(self, blocks: int, *, alone: bool = False) -> "Budget":
        """Return what is left once a request that takes these blocks was sent."""
        left = replace(self, free_blocks=self.free_blocks - blocks, idle=False)
        return (
            replace(left, free_slots=0, waiting_room=0)
            if alone
            else replace(left, free_slots=self.free_slots - 1)
        )

    def without_waiting_room(self) -> "Budget":
        """Return the budget of an engine that has none."""
        return replace(self, free_slots=self.free_slots - self.waiting_room, waiting_room=0)


def free_budget(
    capacity: Capacity, held: Sequence[ReservedBlocks], *, spare_blocks: int | None = None
) -> Budget:
    """Compute what an engine has left after its reservations; never negative.

    Args:
        capacity: of the engine.
        held: every reservation on it, draining ones included.
        spare_blocks: free blocks by the engine's own gauge while it serves other clients too. It can only
            shrink the budget. None: no gauge, or no other client.
    """
    free_slots = max(0, capacity.max_batch_size + capacity.waiting_room - len(held))
    free_blocks = max(0, capacity.max_blocks - sum(each.blocks for each in held))
    if spare_blocks is not None:
        free_blocks = min(free_blocks, max(0, spare_blocks))
    if any(each.alone for each in held):
        return Budget(free_slots=0, free_blocks=free_blocks, idle=False)
    return Budget(free_slots, free_blocks, idle=not held, waiting_room=capacity.waiting_room)


def room_of(max_batch_size: int, *, configured: int | None = None, counts_waiting: bool) -> int:
    """Return how many requests may wait inside an engine, so that no slot stays empty between two.

    An eighth of the slots ends in an eighth of the time that a request takes, which is longer than we take
    to send the next. An engine of few slots has none: its slots end rarely, and order matters more.

    Args:
        max_batch_size: slots of the engine.
        configured: what an operator has set. None: nothing.
        counts_waiting: its gauges count requests that wait. Without such a gauge, no reading can prove that a
            cancelled request has left while others wait.
    """
    if configured is not None:
        return configured
    return max_batch_size // 8 if max_batch_size >= 16 and counts_waiting else 0


def blocks_for(num_tokens: int, tokens_per_block: int) -> int:
    """Compute the KV blocks that `num_tokens` tokens occupy, rounded up."""
    return -(-num_tokens // tokens_per_block)


def find_least_excess(
    capacities: Sequence[Capacity], *, prompt_tokens: int, max_tokens: int
) -> Excess | None:
    """Find out why this job can never run on any of these engines: the limit of the largest.

    Returns:
        None if it can.
    """
    found = [find_excess(each, prompt_tokens=prompt_tokens, max_tokens=max_tokens) for each in capacities]
    excesses = [each for each in found if each is not None]
    return None if len(excesses) < len(found) else max(excesses, key=lambda each: each.limit)


def find_excess(capacity: Capacity, *, prompt_tokens: int, max_tokens: int) -> Excess | None:
    """Find out why this job can never run on an engine of this capacity.

    Returns:
        None if it can.
    """
    total = prompt_tokens + max_tokens
    if prompt_tokens > capacity.max_input_len:
        return Excess(prompt_tokens, max_tokens, capacity.max_input_len, "max_input_len")
    if total > capacity.max_seq_len:
        return Excess(prompt_tokens, max_tokens, capacity.max_seq_len, "max_seq_len")
    if capacity.blocks_of(total) > capacity.max_blocks:
        return Excess(prompt_tokens, max_tokens, capacity.max_tokens_in_pool, "kv_cache_tokens")
    return None
