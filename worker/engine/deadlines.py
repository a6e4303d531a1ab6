"""The deadlines of a stream, computed from its tokens at the pace of the slowest engine we serve."""

from dataclasses import dataclass
from typing import Final

from jobs.engines.capacity import Capacity

# Seconds per token of Llama 3.1 8B on an A6000, times about four. Prefill of 96k tokens takes about 50 s
# (0.5 ms per token with attention); four sequences decode in 30 ms a step, 80 ms next to a prefill chunk.
PREFILL_SECONDS_PER_TOKEN: Final = 0.002
DECODE_SECONDS_PER_TOKEN: Final = 0.3
# The part that no faster engine shortens: scheduling, a loaded host, a cancelled request's last iteration.
FLOOR_SECONDS: Final = 15.0
CONNECT_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Deadlines:
    """The times, in seconds, after which a stream counts as stuck.

    Attributes:
        first_token: from its start to its first token.
        between_tokens: from one token to the next.
        total: from its start to its end.
    """

    first_token: float
    between_tokens: float
    total: float


def deadlines_for(
    *, prompt_tokens: int, max_tokens: int, capacity: Capacity, slot_wait: int = 0, time_scale: float = 1
) -> Deadlines:
    """Compute the deadlines of one job.

    The engine may prefill every other prompt that fits into the pool before it and, without chunked prefill,
    between two of its tokens; so both waits grow with the pool, not with the prompt alone.

    Args:
        prompt_tokens: the job's prompt tokens.
        max_tokens: output tokens that it may generate.
        capacity: its engine's capacity.
        slot_wait: tokens that another job is expected to generate before it leaves this one its slot.
        time_scale: how many times faster than an A6000 the engine runs.
    """
    other_tokens = max(0, capacity.max_tokens_in_pool - prompt_tokens)
    prefill = PREFILL_SECONDS_PER_TOKEN * (prompt_tokens + other_tokens) / time_scale
    gap = PREFILL_SECONDS_PER_TOKEN * other_tokens / time_scale
    decode = DECODE_SECONDS_PER_TOKEN * max_tokens / time_scale
    wait = DECODE_SECONDS_PER_TOKEN * slot_wait / time_scale
    return Deadlines(
        first_token=FLOOR_SECONDS + wait + prefill,
        between_tokens=FLOOR_SECONDS + gap,
        # The prefill of small jobs that start later takes time too: at most as long as this job decodes.
        total=FLOOR_SECONDS + wait + 2 * (prefill + decode),
    )
