"""The capacity of an engine over HTTP: what it reports, with the settings' overrides."""

from jobs.engines.capacity import Capacity
from jobs.errors import EngineError
from jobs.settings import EngineSettings


def capacity_of(
    overrides: EngineSettings,
    *,
    slots: int | None,
    blocks: int | None,
    tokens_per_block: int | None,
    context: int | None,
    hint: str,
) -> Capacity:
    """Combine the settings with what the server reports.

    Args:
        overrides: the settings.
        slots: sequences that decode together; None if the server does not tell.
        blocks: KV blocks in the pool; None if it does not tell.
        tokens_per_block: tokens in one block; None if it does not tell.
        context: most tokens of one sequence; None if it does not tell.
        hint: where an operator finds what the server does not tell.

    Raises:
        EngineError: a number is missing; the message names the setting.
    """
    found = {
        "MAX_BATCH_SIZE": overrides.max_batch_size or slots,
        "MAX_BLOCKS": overrides.max_blocks or blocks,
        "TOKENS_PER_BLOCK": overrides.tokens_per_block or tokens_per_block,
    }
    if missing := [f"LONGBATCH_ENGINE__{name}" for name, value in found.items() if not value]:
        raise EngineError(f"the server does not report its whole capacity: set {', '.join(missing)} ({hint})")
    longest = min(overrides.max_seq_len, context or overrides.max_seq_len)
    return Capacity(
        max_batch_size=found["MAX_BATCH_SIZE"] or 0,
        max_blocks=found["MAX_BLOCKS"] or 0,
        tokens_per_block=found["TOKENS_PER_BLOCK"] or 0,
        max_input_len=min(overrides.max_input_len, longest - 1),
        max_seq_len=longest,
        blocks_per_sequence=overrides.blocks_per_sequence,
    )
