"""Connections of callers: limits on their number and on how long each may keep the server waiting.

Many deployments run the API without a proxy, so it ends slow connections itself. Each connection checks
itself a few times within the shortest limit; requests only note when something arrives.

At the limit a new connection takes the place of the one that has gone longest without a request of a known
caller: it is idle, slow, or has no valid key. Requests of known callers are limited per tenant instead
(`api.runtime.open_requests`), which always leaves a place free.
"""

import asyncio
from dataclasses import dataclass
from http import HTTPStatus
from itertools import islice
from typing import Any, ClassVar, Final

from pydantic_core import to_json
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from api.http import errors
from api.runtime.open_requests import is_counted
from jobs import telemetry
from jobs.errors import UnavailableError

# Of one request's line and headers, or of its trailers; h11 and nginx allow about as much.
_MAX_HEAD_BYTES: Final = 64 * 1024
_CHECKS_PER_LIMIT: Final = 4
_LOG_SECONDS: Final = 60.0
# Bounds the cost of a new connection, which may find no place at first if most requests are counted.
_MAX_PASSED_OVER: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Limits on how long a caller may take, in seconds, and on the number of connections.

    Attributes:
        head_seconds: for the line and the headers of one request.
        body_seconds: between two chunks of a body; also how long a body may be slower than `body_rate`.
        body_rate: bytes per second, on average over a body.
        read_seconds: without reading any of a response.
        max_connections: at once in this process.
    """

    head_seconds: float
    body_seconds: float
    body_rate: int
    read_seconds: float
    max_connections: int

    @property
    def check_seconds(self) -> float:
        """Interval at which a connection checks itself."""
        return min(self.head_seconds, self.body_seconds, self.read_seconds) / _CHECKS_PER_LIMIT


class Connection(HttpToolsProtocol):
    """One caller's connection, closed when the caller is too slow, or when others need its place.

    Attributes:
        limits: of all connections of this class.
        places: of all connections of this class.
    """

    limits: ClassVar[ConnectionLimits]
    places: "ClassVar[Places]"
    _full_logged_at: float | None = None

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._timer: asyncio.TimerHandle | None = None
        self._head_since: float | None = None  # None: not waiting for a head
        self._body_since: float | None = None  # when a body's last chunk arrived; None: not waiting for one
        self._body_until = 0.0  # when the body's bytes so far will be too few
        self._linger_since: float | None = None  # when the response was complete and the body was not
        self._num_unused = 0  # bytes since the parser last reported a whole head or a chunk of a body
        self._num_unsent = 0
        self._unsent_since = 0.0  # when the caller last read some of the unsent bytes

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Start watching the connection, which takes another's place if there are too many."""
        super().connection_made(transport)
        self.places.take(self)
        if len(self.connections) > self.limits.max_connections:
            self._log_full()
            self.places.make_room()
        self._head_since = self._unsent_since = self.loop.time()
        self._timer = self.loop.call_later(self.limits.check_seconds, self._check)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop watching the connection."""
        self.places.leave(self)
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what arrived, and refuse a head that exceeds the limit."""
        if self.transport.is_closing():
            return
        now = self.loop.time()
        if self._body_since is not None:
            self._body_since = now
        elif self._head_since is None:
            self._head_since = now
        self._num_unused += len(data)
        super().data_received(data)
        if self._num_unused > _MAX_HEAD_BYTES:
            message = f"The line and headers of a request may have at most {_MAX_HEAD_BYTES} bytes."
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "headers_too_large", message)

    def on_message_begin(self) -> None:
        """Wait for the head of a request, which may arrive together with the one before."""
        if self._head_since is None:
            self._head_since = self.loop.time()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header; drop trailers, which come with the body and have no reader."""
        if self._body_since is None:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start the request."""
        now = self.loop.time()
        self._head_since, self._body_since, self._num_unused = None, now, 0
        self._body_until = now + self.limits.body_seconds
        self.places.go_last(self)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Pass on a chunk of the body."""
        self._num_unused = 0
        self._body_until += len(body) / self.limits.body_rate
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Stop waiting for this request."""
        self._body_since = self._linger_since = None
        self._num_unused = 0
        super().on_message_complete()
        if not self._is_answering() and self.timeout_keep_alive_task is None:
            self._head_since = self.loop.time()  # answered early, so uvicorn does not time the next request

    def on_response_complete(self) -> None:
        """Start a short deadline for the rest of a body that the response did not need."""
        if self._body_since is not None:
            self._linger_since = self.loop.time()
        self.places.go_last(self)
        super().on_response_complete()

    def is_counted(self) -> bool:
        """Return True while it has a request that is counted for a tenant."""
        return self._is_answering() and is_counted(self.cycle.scope["state"])

    def give_way(self) -> None:
        """End now, with an answer to a request that has begun."""
        if self.transport.get_write_buffer_size() or not (self._num_unused or self._is_answering()):
            self.transport.abort()  # closing would wait for the reader
            return
        message = "This server is at its connection limit; try again."
        self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, UnavailableError.code, message)

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _check(self) -> None:
        now = self.loop.time()
        self._timer = self.loop.call_later(self.limits.check_seconds, self._check)
        self._note_unsent(now)
        if self._num_unsent and now - self._unsent_since > self.limits.read_seconds:
            self.transport.abort()
        elif self.transport.is_closing():
            return  # unsent bytes are still watched
        elif self._body_since is not None:
            self._check_body(now, self._body_since)
        elif self._head_since is not None and now - self._head_since > self.limits.head_seconds:
            if self._is_answering():
                return  # half of the next request arrived early
            if self._num_unused == 0:
                self.transport.close()  # not one byte arrived, so there is no request to answer
                return
            self._refuse_slow(f"The headers took longer than {self.limits.head_seconds:g} s.")

    def _check_body(self, now: float, since: float) -> None:
        if self._linger_since is not None:
            if now - self._linger_since > self.limits.head_seconds:
                self.transport.close()
        elif self.flow.read_paused or self.cycle.waiting_for_100_continue:
            self._body_since = now  # the caller is waiting for us
            self._body_until += self.limits.check_seconds
        elif now - since > self.limits.body_seconds:
            self._refuse_slow(f"No body data arrived for {self.limits.body_seconds:g} s.")
        elif now > self._body_until:
            self._refuse_slow(f"The body arrived slower than {self.limits.body_rate} bytes/s.")

    def _note_unsent(self, now: float) -> None:
        num_unsent = self.transport.get_write_buffer_size()
        if num_unsent == 0 or num_unsent < self._num_unsent:
            self._unsent_since = now
        self._num_unsent = num_unsent

    def _refuse_slow(self, message: str) -> None:
        self._refuse(HTTPStatus.REQUEST_TIMEOUT, "request_timeout", message)

    def _refuse(self, status: HTTPStatus, code: str, message: str) -> None:
        """Close the connection, with a response if none has begun."""
        if self.transport.is_closing():
            return
        if not self._is_answering() or not (self.pipeline or self.cycle.response_started):
            body = to_json(errors.envelope(status, code, message))
            head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
            self.transport.write(STATUS_LINE[status] + head % len(body) + body)
        self.transport.close()

    def _log_full(self) -> None:
        kind, now = type(self), self.loop.time()
        if kind._full_logged_at is None or now - kind._full_logged_at > _LOG_SECONDS:  # noqa: SLF001  # our own
            kind._full_logged_at = now  # noqa: SLF001
            telemetry.logger().warning(
                telemetry.API_CONNECTION_LIMIT, max_connections=self.limits.max_connections
            )


class Places:
    """The open connections, in the order in which a new one takes their places.

    That is the order in which they were made, began a request or ended one.
    """

    def __init__(self) -> None:
        self._order: dict[Connection, None] = {}

    def take(self, connection: Connection) -> None:
        """Add a connection as the last one."""
        self._order[connection] = None

    def leave(self, connection: Connection) -> None:
        """Remove a connection; idempotent."""
        self._order.pop(connection, None)

    def go_last(self, connection: Connection) -> None:
        """Move a connection to the end, if it still has its place."""
        if connection in self._order:
            del self._order[connection]
            self._order[connection] = None

    def make_room(self) -> None:
        """End the first connection without a request that is counted for a tenant; the others go last."""
        for first in list(islice(self._order, _MAX_PASSED_OVER)):
            if not first.is_counted():
                self.leave(first)
                first.give_way()
                return
            self.go_last(first)


def connection_class(limits: ConnectionLimits) -> type[Connection]:
    """Return the connection class that uvicorn uses under these limits."""
    return type("LimitedConnection", (Connection,), {"limits": limits, "places": Places()})
