"""The capacity of an engine over HTTP: what it reports, with the settings' overrides."""

from collections.abc import Sequence
from dataclasses import dataclass

from jobs.engines.capacity import Capacity, room_of
from jobs.errors import EngineError
from jobs.settings import EngineSettings


@dataclass(frozen=True, slots=True)
class ReportedSizes:
    """What a server reports of its capacity; 0 where it does not tell.

    Attributes:
        slots: sequences that decode together.
        blocks: KV blocks in the pool.
        tokens_per_block: tokens in one block.
        context: most tokens of one sequence.
        blocks_per_sequence: blocks that a sequence takes besides those of its text, at most: while its
            prompt is read.
        prompt: most tokens of a prompt; 0: all of the context but one.
        counts_waiting: it is one engine whose gauges count the requests that wait inside. With data
            parallelism a request waits for a slot of its own rank, even if another rank has one free.
    """

    slots: int = 0
    blocks: int = 0
    tokens_per_block: int = 0
    context: int = 0
    blocks_per_sequence: int = 0
    prompt: int = 0
    counts_waiting: bool = False


class CapacityUnknownError(EngineError):
    """The server does not report its whole capacity; an operator must set the rest.

    Attributes:
        missing: the names of the settings, without their prefix.
        hint: where an operator finds these numbers.
    """

    def __init__(self, missing: Sequence[str], *, hint: str) -> None:
        named = ", ".join(f"LONGBATCH_ENGINE__{name}" for name in missing)
        super().__init__(f"the server does not report its whole capacity: set {named} ({hint})")
        self.missing = tuple(missing)
        self.hint = hint


def capacity_of(overrides: EngineSettings, sizes: ReportedSizes, *, hint: str) -> Capacity:
    """Combine the settings with what the server reports.

    Of what a sequence takes while its prompt is read, the settings may name the part that it keeps. The rest
    is held free once for the whole engine, whose iterations read no more prompt tokens, of however many
    sequences.

    Args:
        overrides: the settings.
        sizes: what the server reports.
        hint: where an operator finds what the server does not tell.

    Raises:
        CapacityUnknownError: a number is missing; the message names the setting.
    """
    found = {
        "MAX_BATCH_SIZE": overrides.max_batch_size or sizes.slots,
        "MAX_BLOCKS": overrides.max_blocks or sizes.blocks,
        "TOKENS_PER_BLOCK": overrides.tokens_per_block or sizes.tokens_per_block,
    }
    if missing := [name for name, value in found.items() if not value]:
        raise CapacityUnknownError(missing, hint=hint)
    most = sizes.blocks_per_sequence
    kept = most if overrides.blocks_per_sequence is None else overrides.blocks_per_sequence
    longest = min(overrides.max_seq_len, sizes.context or overrides.max_seq_len)
    return Capacity(
        max_batch_size=found["MAX_BATCH_SIZE"],
        max_blocks=max(1, found["MAX_BLOCKS"] - max(0, most - kept)),
        tokens_per_block=found["TOKENS_PER_BLOCK"],
        max_input_len=min(overrides.max_input_len, sizes.prompt or longest - 1, longest - 1),
        max_seq_len=longest,
        blocks_per_sequence=kept,
        waiting_room=room_of(
            found["MAX_BATCH_SIZE"], configured=overrides.waiting_room, counts_waiting=sizes.counts_waiting
        ),
    )
