"""How long a stream may stay silent: deadlines from tokens, at the pace of the slowest engine we serve."""

from dataclasses import dataclass
from typing import Final

from jobs.engines.capacity import Capacity

# Seconds per token of Llama 3.1 8B on an A6000, times about four. A prompt of 96k tokens is read in some 50 s
# (0.5 ms per token, attention included); four sequences decode in 30 ms a step, 80 ms beside a prefill chunk.
PREFILL_SECONDS_PER_TOKEN: Final = 0.002
DECODE_SECONDS_PER_TOKEN: Final = 0.3
# What no faster engine shortens: scheduling, a loaded host, the last iteration of a cancelled request.
FLOOR_SECONDS: Final = 15.0
CONNECT_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds after which a stream counts as stuck.

    Attributes:
        first_token: from its start to its first token.
        between_tokens: from one token to the next.
        total: from its start to its end.
    """

    first_token: float
    between_tokens: float
    total: float


def deadlines_for(
    *, prompt_tokens: int, max_tokens: int, capacity: Capacity, time_scale: float = 1
) -> Deadlines:
    """The deadlines of one job.

    All other prompts that fit into the pool may be read before it and, without chunked prefill, between two
    of its tokens; so both waits grow with the pool, not with the prompt alone.

    Args:
        prompt_tokens: of the job.
        max_tokens: output tokens that it may generate.
        capacity: of its engine.
        time_scale: how much faster than an A6000 the engine runs.
    """
    beside = max(0, capacity.max_tokens_in_pool - prompt_tokens)
    reading = PREFILL_SECONDS_PER_TOKEN * (prompt_tokens + beside) / time_scale
    gap = PREFILL_SECONDS_PER_TOKEN * beside / time_scale
    writing = DECODE_SECONDS_PER_TOKEN * max_tokens / time_scale
    return Deadlines(
        first_token=FLOOR_SECONDS + reading,
        between_tokens=FLOOR_SECONDS + gap,
        # Small jobs that start later are read beside it too: as long as it writes, at the most.
        total=FLOOR_SECONDS + 2 * (reading + writing),
    )
