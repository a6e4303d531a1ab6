"""How fast an engine reads and writes, measured from the jobs that it served: pure arithmetic."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import sqrt

# A prompt token also attends to all before it: at this length, a prompt takes twice the time of its matrices.
# 2 x parameters / flops of one attended pair, for Llama 3.1 8B: 2 x 16.06e9 / 524,288.
_ATTENTION_TOKENS = 61_264


@dataclass(frozen=True, slots=True)
class Speed:
    """How long an engine's iterations take.

    Attributes:
        step_s: seconds of an iteration that reads no prompt; each running job gets one token.
        read_s: seconds that one token at the beginning of a prompt adds.
    """

    step_s: float
    read_s: float

    def reading_s(self, prompt_tokens: float) -> float:
        """Compute the seconds that a prompt adds to the iterations that read it."""
        return self.read_s * reading_work(prompt_tokens)

    def faster(self, factor: float) -> "Speed":
        """Return the speed of an engine that is faster by this factor."""
        return Speed(self.step_s / factor, self.read_s / factor)


# By the roofline of an A6000 with half of its KV cache filled; used until there is a measurement.
A6000 = Speed(step_s=0.037, read_s=0.000_207)


@dataclass(frozen=True, slots=True)
class JobTiming:
    """One job's time on an engine; moments in seconds on any one clock.

    Attributes:
        began_at: when it started, before it read any of its prompt.
        first_token_at: when it had read its prompt; None: it is still reading.
        until: when it ended, or now.
        prompt_tokens: that the engine computed; see `computed_tokens`.
        new_tokens: generated up to `until`.
    """

    began_at: float
    first_token_at: float | None
    until: float
    prompt_tokens: float
    new_tokens: int


def reading_work(prompt_tokens: float) -> float:
    """Compute the work of reading a prompt, in tokens at its beginning."""
    return prompt_tokens * (1 + prompt_tokens / _ATTENTION_TOKENS)


def computed_tokens(prompt_tokens: float, *, cached: float) -> float:
    """Compute the length of a prompt that takes as long to read as the rest of this one.

    Args:
        prompt_tokens: of the prompt.
        cached: the first of them, that the engine has; the others still attend to them.
    """
    work = reading_work(prompt_tokens) - reading_work(cached)
    return _ATTENTION_TOKENS / 2 * (sqrt(1 + 4 * work / _ATTENTION_TOKENS) - 1)


def measure(timings: Sequence[JobTiming], *, otherwise: Speed) -> Speed:
    """Compute the median speeds over these timings; long ones count more.

    An engine reads prompts one after another, and while it does, other jobs get hardly a token: that waiting
    does not count as their time.

    Args:
        timings: of jobs of one engine.
        otherwise: the speed to use where these timings do not show one.
    """
    readings = _merged((each.began_at, each.first_token_at or each.until) for each in timings)
    reads = [found for each in timings if (found := _read_rate(each, timings)) is not None]
    steps = [found for each in timings if (found := _step_rate(each, readings)) is not None]
    return Speed(
        step_s=_weighted_median(steps) or otherwise.step_s, read_s=_weighted_median(reads) or otherwise.read_s
    )


_Span = tuple[float, float]


def _read_rate(one: JobTiming, all_of_them: Iterable[JobTiming]) -> tuple[float, float] | None:
    """Compute the seconds per unit of work while it read its prompt, and its weight.

    Counts the work of prompts that were read at the same time.
    """
    if one.first_token_at is None or one.first_token_at <= one.began_at:
        return None
    mine = (one.began_at, one.first_token_at)
    work = 0.0
    for each in all_of_them:
        if each.first_token_at is not None and each.first_token_at > each.began_at:
            reading = (each.began_at, each.first_token_at)
            share = _overlap(mine, reading) / (reading[1] - reading[0])
            work += share * reading_work(each.prompt_tokens)
    return ((mine[1] - mine[0]) / work, reading_work(one.prompt_tokens)) if work else None


def _step_rate(one: JobTiming, readings: Iterable[_Span]) -> tuple[float, float] | None:
    """Compute the seconds per token after the first, and its weight.

    Leaves out the time in which the engine read prompts.
    """
    if one.first_token_at is None or one.new_tokens < 2:
        return None
    writing = (one.first_token_at, one.until)
    seconds = writing[1] - writing[0] - sum(_overlap(writing, each) for each in readings)
    return (seconds / (one.new_tokens - 1), one.new_tokens) if seconds > 0 else None


def _merged(spans: Iterable[_Span]) -> list[_Span]:
    """Merge overlapping spans of time."""
    found: list[_Span] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def _overlap(one: _Span, other: _Span) -> float:
    return max(0.0, min(one[1], other[1]) - max(one[0], other[0]))


def _weighted_median(pairs: Iterable[tuple[float, float]]) -> float | None:
    """Find the value that reaches half of the weight; None if there are no pairs."""
    ordered = sorted(pairs)
    half, reached = sum(weight for _, weight in ordered) / 2, 0.0
    for value, weight in ordered:
        reached += weight
        if reached >= half:
            return value
    return None
