"""What a load test measures: each request's times, and their percentiles by the standard definitions."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from jobs.errors import LongbatchError


@dataclass(frozen=True, slots=True)
class Timing:
    """The times of one completed request, in seconds.

    Attributes:
        ttft: time to first token, from sending to the first delta.
        latency: from sending to the end of the output.
        output_tokens: tokens generated.
        is_counted: True if the server reported the number; otherwise the output text was counted.
    """

    ttft: float
    latency: float
    output_tokens: int
    is_counted: bool

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first; None if there was only one."""
        return (self.latency - self.ttft) / (self.output_tokens - 1) if self.output_tokens > 1 else None


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles of one measure, in seconds; by nearest rank, so each value was observed."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Percentiles | None":
        """Compute the percentiles; return None if there are no values."""
        if not values:
            return None
        ranked = sorted(values)

        def at(share: float) -> float:
            return round(ranked[max(0, ceil(share * len(ranked)) - 1)], 6)

        return cls(round(sum(ranked) / len(ranked), 6), at(0.5), at(0.9), at(0.99), at(1))


@dataclass(frozen=True, slots=True)
class LoadReport:
    """The results of one load test.

    Attributes:
        entry: the target of the requests.
        num_requests: requests sent; `num_failed` of them failed.
        seconds: from sending the first request to the end of the last output.
        output_tokens: sum over all requests; `output_tokens_per_second` is over `seconds`.
        tokens_are_counted: True if the server reported them; otherwise the output texts were counted.
        ttft: time to first token; the latency, if outputs arrive whole.
        tpot: time per output token after the first, one mean for each request.
        latency: of whole requests.
        errors: the first few distinct messages.
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
    """The request failed."""

    code = "load_failed"
