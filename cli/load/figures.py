"""What a load test measures: each request's times, and their percentiles by the field's definitions."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from jobs.errors import LongbatchError


@dataclass(frozen=True, slots=True)
class Timing:
    """One request that was answered; all times in seconds.

    Attributes:
        ttft: time to first token: from sending to the first piece of the answer.
        latency: from sending to the end of the answer.
        output_tokens: generated.
        is_counted: the server told how many; else they are those of the text.
    """

    ttft: float
    latency: float
    output_tokens: int
    is_counted: bool

    @property
    def tpot(self) -> float | None:
        """Time per output token: what came after the first, over how many came after it; None: none did."""
        return (self.latency - self.ttft) / (self.output_tokens - 1) if self.output_tokens > 1 else None


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of one measure, in seconds; nearest rank, so each value was really observed."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Percentiles | None":
        """None: there are no values."""
        if not values:
            return None
        ranked = sorted(values)

        def at(share: float) -> float:
            return round(ranked[max(0, ceil(share * len(ranked)) - 1)], 6)

        return cls(round(sum(ranked) / len(ranked), 6), at(0.5), at(0.9), at(0.99), at(1))


@dataclass(frozen=True, slots=True)
class Report:
    """One load test.

    Attributes:
        entry: what was asked.
        num_requests: sent; `num_failed` of them were not answered.
        seconds: from the first request's sending to the last answer's end.
        output_tokens: of all answers; `output_tokens_per_second` over `seconds`.
        tokens_are_counted: the server told them; else they are those of the answers' texts.
        ttft: time to first token. Where answers come whole it is their latency.
        tpot: time per output token after the first, a mean of each request.
        latency: of whole requests.
        errors: the first few, each once.
    """

    entry: str
    num_requests: int
    num_failed: int
    prompt_tokens: int
    max_tokens: int
    rate: float | None
    concurrency: int | None
    seconds: float
    output_tokens: int
    output_tokens_per_second: float
    requests_per_second: float
    tokens_are_counted: bool
    ttft: Percentiles | None
    tpot: Percentiles | None
    latency: Percentiles | None
    errors: tuple[str, ...]


class LoadError(LongbatchError):
    """The request was not answered."""

    code = "load_failed"
