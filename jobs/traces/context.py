"""Where a span belongs, as the header `traceparent` says (W3C Trace Context), and which traces are kept."""

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, Protocol, Self
from uuid import UUID

_VERSION: Final = "00"
# A later version may append fields, which we pass over.
_HEADER: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
_LONGEST: Final = 512  # characters; what is longer was not written by any tracer
_SAMPLED: Final = 1
_NUM_RANDOM: Final[int] = 2**56  # a trace's id is random in its last 56 bits, in every version


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A span as those below it name it.

    Attributes:
        trace_id: 32 hex digits, not all zero.
        span_id: 16 hex digits, not all zero.
        is_sampled: whoever began the trace keeps it.
    """

    trace_id: str
    span_id: str
    is_sampled: bool = True

    @classmethod
    def parse(cls, header: str | None) -> Self | None:
        """Read a `traceparent`.

        Returns:
            None if there is none or it is malformed; the trace then begins anew.
        """
        found = _HEADER.fullmatch(header) if header and len(header) <= _LONGEST else None
        if found is None:
            return None
        version, trace_id, span_id, flags, rest = found.groups()
        if version == "ff" or (version == _VERSION and rest) or not int(trace_id, 16) or not int(span_id, 16):
            return None
        return cls(trace_id, span_id, is_sampled=bool(int(flags, 16) & _SAMPLED))

    @classmethod
    def begin(cls, *, ratio: float) -> Self:
        """Begin a trace, which is kept with this probability."""
        trace_id = secrets.token_hex(16)
        return cls(trace_id, secrets.token_hex(8), is_sampled=is_kept(trace_id, ratio))

    def below(self, span_id: str) -> "TraceContext":
        """Return the context of another span of this trace."""
        return TraceContext(self.trace_id, span_id, self.is_sampled)

    def __str__(self) -> str:
        return f"{_VERSION}-{self.trace_id}-{self.span_id}-{int(self.is_sampled):02x}"


def is_kept(trace_id: str, ratio: float) -> bool:
    """Return True for this share of all traces, and everywhere for the same ones."""
    return int(trace_id, 16) % _NUM_RANDOM < ratio * _NUM_RANDOM


def new_span_id() -> str:
    """Make the id of a span that is written once."""
    return secrets.token_hex(8)


def span_id_of(kind: str, row_id: UUID, number: int = 0) -> str:
    """Return the id of the span of this kind that tells of a row: the same whoever writes it, and when."""
    return blake2b(b"%s %s %d" % (kind.encode(), row_id.bytes, number), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class JobsTrace:
    """The trace of the jobs of one request, batch or tree.

    Attributes:
        traceparent: of the span above them.
        max_jobs: that the trace holds at most; the others have none.
    """

    traceparent: str
    max_jobs: int

    def of(self, place: int, *, among: int) -> str | None:
        """Return what the job at this place, from 0, stores.

        Those that the trace holds spread evenly, and the last one is among them.
        """
        chosen = min(self.max_jobs, among)
        is_chosen = (place + 1) * chosen // among > place * chosen // among
        return self.traceparent if is_chosen else None

    def share(self, *, among: int) -> "JobsTrace":
        """Return the trace for the jobs of one part that it holds, of so many: at least one job."""
        return JobsTrace(self.traceparent, max(1, self.max_jobs // max(1, min(self.max_jobs, among))))

    def mark(self, jobs: "Sequence[Traceable]") -> None:
        """Let the jobs of this trace say so."""
        for place, job in enumerate(jobs):
            job.traceparent = self.of(place, among=len(jobs))


class Traceable(Protocol):
    """A row that stores to which trace it belongs."""

    traceparent: str | None
