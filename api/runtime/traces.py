"""The trace that a request continues or begins, for whatever it submits."""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Self, TypeVar

from sqlalchemy.orm import Session

from jobs.models import Batch, Summary
from jobs.settings import TraceSettings
from jobs.traces import configured
from jobs.traces.context import JobsTrace, TraceContext, is_kept, new_span_id
from jobs.traces.span import Span, SpanKind, known

if TYPE_CHECKING:
    from jobs.traces.export import RequestSpans

Row = TypeVar("Row", Batch, Summary)


@dataclass(slots=True)
class RequestTrace:
    """The trace of one request.

    Attributes:
        context: of the request's own span.
        parent_id: the caller's span; None: the trace begins here.
        max_jobs: that the trace holds.
        is_used: the request submitted something, so its span is sent.
    """

    context: TraceContext
    parent_id: str | None
    max_jobs: int
    is_used: bool = False

    def of_jobs(self) -> JobsTrace | None:
        """Return the trace of what the request submits; None: it is not kept."""
        if not self.context.is_sampled:
            return None
        self.is_used = True
        return JobsTrace(str(self.context), self.max_jobs)


# Set for requests that may submit something while traces are on.
request_trace: ContextVar[RequestTrace | None] = ContextVar("request_trace", default=None)


def trace_of_request() -> JobsTrace | None:
    """Return the trace of what the present request submits; None: it is in none."""
    trace = request_trace.get()
    return None if trace is None else trace.of_jobs()


def traceparent_of_request() -> str | None:
    """Return the present request's own span, for logs; None: it has none, or that is not kept."""
    trace = request_trace.get()
    return str(trace.context) if trace is not None and trace.context.is_sampled else None


def traced(create: Callable[[Session], list[Row]]) -> Callable[[Session], list[Row]]:
    """Let the rows that `create` makes belong to the trace of the present request, if there is one."""
    trace = trace_of_request()
    if trace is None:
        return create

    def run(session: Session) -> list[Row]:
        made = create(session)
        trace.mark(made)
        return made

    return run


class Tracing:
    """Begins the traces of requests, and sends their spans."""

    def __init__(self, settings: TraceSettings, spans: "RequestSpans") -> None:
        self._settings = settings
        self._spans = spans

    @classmethod
    def of(cls, settings: TraceSettings) -> Self | None:
        """Return None if traces are off.

        Raises:
            ValueError: their packages are missing.
        """
        spans = configured.request_spans_of(settings)
        return None if spans is None else cls(settings, spans)

    def begin(self, headers: list[bytes]) -> RequestTrace:
        """Continue the caller's trace, or begin one.

        Args:
            headers: the values of `traceparent`; there may be one.
        """
        given = TraceContext.parse(headers[0].decode("latin-1")) if len(headers) == 1 else None
        if given is None:
            return RequestTrace(TraceContext.begin(ratio=self._settings.ratio), None, self._settings.max_jobs)
        follows = self._settings.follow_callers
        is_sampled = given.is_sampled if follows else is_kept(given.trace_id, self._settings.ratio)
        own = TraceContext(given.trace_id, new_span_id(), is_sampled=is_sampled)
        return RequestTrace(own, given.span_id, self._settings.max_jobs)

    def end(
        self,
        trace: RequestTrace,
        *,
        method: str,
        route: str,
        status: int | None,
        began: datetime,
        ended: datetime,
    ) -> None:
        """Send the span of a request that submitted something. Returns at once.

        Args:
            trace: of the request.
            method: of the request.
            route: its path, with the names of parameters.
            status: of the response; None: there was none.
            began: when it came, by this host's clock.
            ended: when it was over.
        """
        self._spans.add(
            Span(
                name=f"{method} {route}",
                context=trace.context,
                parent_id=trace.parent_id,
                started_at=began,
                ended_at=ended,
                kind=SpanKind.SERVER,
                attributes=known(
                    http__request__method=method, http__route=route, http__response__status_code=status
                ),
                error_type="no_response" if status is None else str(status) if status >= 500 else None,
            )
        )

    def close(self, *, within: float) -> None:
        """Send what waits, for so many seconds at most."""
        self._spans.close(within=within)
