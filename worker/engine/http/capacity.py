"""The capacity of an engine over HTTP: what it reports, with the settings' overrides."""

from dataclasses import dataclass

from jobs.engines.capacity import Capacity
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
    """

    slots: int = 0
    blocks: int = 0
    tokens_per_block: int = 0
    context: int = 0


def capacity_of(overrides: EngineSettings, sizes: ReportedSizes, *, hint: str) -> Capacity:
    """Combine the settings with what the server reports.

    Args:
        overrides: the settings.
        sizes: what the server reports.
        hint: where an operator finds what the server does not tell.

    Raises:
        EngineError: a number is missing; the message names the setting.
    """
    found = {
        "MAX_BATCH_SIZE": overrides.max_batch_size or sizes.slots,
        "MAX_BLOCKS": overrides.max_blocks or sizes.blocks,
        "TOKENS_PER_BLOCK": overrides.tokens_per_block or sizes.tokens_per_block,
    }
    if missing := [f"LONGBATCH_ENGINE__{name}" for name, value in found.items() if not value]:
        raise EngineError(f"the server does not report its whole capacity: set {', '.join(missing)} ({hint})")
    longest = min(overrides.max_seq_len, sizes.context or overrides.max_seq_len)
    return Capacity(
        max_batch_size=found["MAX_BATCH_SIZE"],
        max_blocks=found["MAX_BLOCKS"],
        tokens_per_block=found["TOKENS_PER_BLOCK"],
        max_input_len=min(overrides.max_input_len, longest - 1),
        max_seq_len=longest,
        blocks_per_sequence=overrides.blocks_per_sequence,
    )
