"""The edge to OpenTelemetry: writes our spans by its SDK, and sends them to a collector.

Nothing here is imported, and its packages need not be installed, unless an endpoint is configured.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from threading import Lock, Thread
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from jobs import telemetry
from jobs.settings import TraceSettings
from jobs.traces import span as values
from jobs.traces.context import TraceContext
from jobs.traces.span import Span
from jobs.version import version

_KINDS: Final = {
    values.SpanKind.INTERNAL: SpanKind.INTERNAL,
    values.SpanKind.SERVER: SpanKind.SERVER,
    values.SpanKind.CLIENT: SpanKind.CLIENT,
}
# How often a process tells in its log that the collector is away.
_TELL_EVERY_SECONDS: Final = 60.0
# Spans of requests that wait for the collector; beyond it the oldest are dropped.
_MAX_WAITING: Final = 2048
_MAX_TOGETHER: Final = 512
_DELAY_MS: Final = 1000
_LOOK_SECONDS: Final = 0.05


class Collector:
    """Sends spans to a collector, and tells in the log if it does not take them."""

    def __init__(self, settings: TraceSettings, *, exporter: SpanExporter | None = None) -> None:
        """Set up without sending anything.

        Args:
            settings: with an endpoint.
            exporter: that sends; None: over HTTP, as set.
        """
        _silence()
        self._seconds = settings.timeout_seconds
        self._exporter = exporter or OTLPSpanExporter(
            settings.url, headers=settings.header_fields, timeout=settings.timeout_seconds
        )
        self._sending: Thread | None = None
        self._told_at = float("-inf")
        self.writer = SpanWriter()

    def send(self, spans: Sequence[Span], *, is_stopping: Callable[[], bool]) -> bool:
        """Send these spans, and wait for the collector as long as its time limit allows.

        A request that hangs is left to itself; while it does, nothing more is sent.

        Args:
            spans: any number.
            is_stopping: looked at while waiting; the process ends, so this gives up.

        Returns:
            True if the collector has them all.
        """
        if self._sending is not None and self._sending.is_alive():
            return False
        results: list[bool] = []
        written = list(self._written(spans))
        self._sending = Thread(
            target=lambda: results.append(self.send_now(written)), name="collector", daemon=True
        )
        self._sending.start()
        until = time.monotonic() + self._seconds
        while self._sending.is_alive() and time.monotonic() < until and not is_stopping():
            self._sending.join(_LOOK_SECONDS)
        is_sent = bool(results) and results[0]
        if not is_sent and not results:
            self._tell("timeout")
        return is_sent

    def send_now(self, spans: Sequence[ReadableSpan]) -> bool:
        """Send spans from this thread, however long that takes."""
        try:
            for start in range(0, len(spans), _MAX_TOGETHER):
                result = self._exporter.export(spans[start : start + _MAX_TOGETHER])
                if result is not SpanExportResult.SUCCESS:
                    self._tell("refused")
                    return False
        except Exception as error:  # noqa: BLE001  # no fault of a collector may reach a job
            self._tell(type(error).__name__)
            return False
        return True

    def _written(self, spans: Sequence[Span]) -> Iterator[ReadableSpan]:
        """Write spans; one that cannot be written is left out, so that it harms no other."""
        for each in spans:
            try:
                yield self.writer.write(each)
            except Exception as error:  # noqa: BLE001  # see above
                telemetry.log_failure(telemetry.ROW_FAILED, error, loop="traces")

    def close(self) -> None:
        """Send nothing more. A request under way is left to itself."""
        self._exporter.shutdown()

    def _tell(self, reason: str) -> None:
        now = time.monotonic()
        if now - self._told_at >= _TELL_EVERY_SECONDS:
            self._told_at = now
            telemetry.logger().warning(telemetry.TRACES_UNSENT, reason=reason)


class SpanWriter:
    """Turns our spans into OpenTelemetry's, with the ids that they have; any thread may."""

    def __init__(self) -> None:
        ours = Resource({"service.name": "longbatch", "service.version": version()})
        resource = ours.merge(OTELResourceDetector().detect())  # as OTEL_SERVICE_NAME and others say
        self._ids = _GivenIds()
        provider = TracerProvider(
            sampler=ALWAYS_ON, resource=resource, id_generator=self._ids, shutdown_on_exit=False
        )
        self._tracer = provider.get_tracer("longbatch", version())
        self._lock = Lock()

    def write(self, span: Span) -> ReadableSpan:
        """Write one span, ended."""
        with self._lock:
            self._ids.next = span.context
            made = self._tracer.start_span(
                span.name,
                context=_above(span),
                kind=_KINDS[span.kind],
                attributes=dict(span.attributes),
                start_time=_nanoseconds(span.started_at),
                record_exception=False,
            )
        if span.error_type is not None:
            made.set_attribute("error.type", span.error_type)
            made.set_status(Status(StatusCode.ERROR, span.error_type))
        for event in span.events:
            made.add_event(event.name, timestamp=_nanoseconds(event.at))
        made.end(_nanoseconds(max(span.started_at, span.ended_at)))
        assert isinstance(made, ReadableSpan)  # noqa: S101  # the sampler keeps every one
        return made


class RequestSpans:
    """Sends the spans of requests behind their backs; full of unsent ones, it drops the oldest."""

    def __init__(self, settings: TraceSettings) -> None:
        self._collector = Collector(settings)
        self._waiting = BatchSpanProcessor(
            _Sending(self._collector),
            max_queue_size=_MAX_WAITING,
            schedule_delay_millis=_DELAY_MS,
            max_export_batch_size=_MAX_TOGETHER,
        )

    def add(self, span: Span) -> None:
        """Leave a span to be sent soon. Returns at once."""
        self._waiting.on_end(self._collector.writer.write(span))

    def close(self, *, within: float) -> None:
        """Send what waits, for so many seconds at most."""
        closing = Thread(target=self._waiting.shutdown, name="collector", daemon=True)
        closing.start()
        closing.join(within)
        self._collector.close()


class _Sending(SpanExporter):
    """What the SDK's queue sends by."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send spans from the queue's own thread."""
        is_sent = self._collector.send_now(spans)
        return SpanExportResult.SUCCESS if is_sent else SpanExportResult.FAILURE


class _GivenIds(IdGenerator):
    """Gives the next span the ids that it has."""

    next: TraceContext

    def generate_span_id(self) -> int:
        """Return the span's own id."""
        return int(self.next.span_id, 16)

    def generate_trace_id(self) -> int:
        """Return the id of its trace, if it is the first one."""
        return int(self.next.trace_id, 16)


def _above(span: Span) -> Context:
    if span.parent_id is None:
        return Context()
    flags = TraceFlags(TraceFlags.SAMPLED)
    above = SpanContext(
        int(span.context.trace_id, 16), int(span.parent_id, 16), is_remote=True, trace_flags=flags
    )
    return trace.set_span_in_context(trace.NonRecordingSpan(above), Context())


def _nanoseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000_000) * 1000


def _silence() -> None:
    """Keep what the packages log by themselves from standard error: their texts may quote what they sent."""
    logging.getLogger("opentelemetry").addHandler(logging.NullHandler())
    logging.getLogger("opentelemetry").propagate = False
