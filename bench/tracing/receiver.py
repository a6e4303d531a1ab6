"""A collector of traces on loopback: keeps what it is sent, as OTLP over HTTP, and answers as it is told."""

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any, Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

# How long a request hangs at most.
_HANGS_SECONDS: Final = 90.0


@dataclass(frozen=True, slots=True)
class SeenSpan:
    """A span as it reached the collector; times in nanoseconds since 1970."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    began: int
    ended: int
    attributes: dict[str, Any]
    events: list[tuple[str, int]]
    is_error: bool


@dataclass
class TraceReceiver:
    """What reached a collector.

    Attributes:
        spans: in the order in which they came.
        headers: of the last request.
        raw: bodies of requests.
        num_requests: that came, whatever became of them.
        status: what it answers.
        going_on: while not set, requests hang.
    """

    url: str = ""
    spans: list[SeenSpan] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    num_requests: int = 0
    status: int = 200
    going_on: Event = field(default_factory=Event)

    def of_trace(self, trace_id: str) -> dict[str, list[SeenSpan]]:
        """Return the spans of this trace, by their names' first words."""
        found: dict[str, list[SeenSpan]] = {}
        for each in {span.span_id: span for span in self.spans}.values():  # what hung may come again
            if each.trace_id == trace_id:
                found.setdefault(each.name.split()[0], []).append(each)
        return found


@contextmanager
def receiving(made: TraceReceiver) -> Iterator[None]:
    """Let this collector listen; at first it takes all."""
    made.going_on.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            """Keep the spans of a request, and answer."""
            made.num_requests += 1
            body = self.rfile.read(int(self.headers["content-length"]))
            made.going_on.wait(_HANGS_SECONDS)
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            made.headers = {name.lower(): value for name, value in self.headers.items()}
            if made.status == 200:
                made.raw.append(body)
                made.spans += _read(body)
            self.send_response(made.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    made.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield
    finally:
        made.going_on.set()
        server.shutdown()
        server.server_close()
        thread.join()


def _read(body: bytes) -> Iterator[SeenSpan]:
    request = ExportTraceServiceRequest.FromString(body)
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield SeenSpan(
                    span.name,
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    span.start_time_unix_nano,
                    span.end_time_unix_nano,
                    {each.key: _value(each.value) for each in span.attributes},
                    [(each.name, each.time_unix_nano) for each in span.events],
                    span.status.code == span.status.STATUS_CODE_ERROR,
                )


def _value(value: AnyValue) -> object:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind) if kind else None
