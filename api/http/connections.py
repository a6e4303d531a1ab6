"""Connections of callers: limits on their number and on how long each may keep the server waiting.

Many deployments run the API without a proxy, so it ends slow connections itself. Each connection checks
itself a few times within the shortest limit; requests only note when something arrives.
"""

import asyncio
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from pydantic_core import to_json
from starlette.types import Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from api.http import errors
from jobs import telemetry
from jobs.errors import UnavailableError

# Of one request's line and headers, or of its trailers; h11 and nginx allow about as much.
_MAX_HEAD_BYTES: Final = 64 * 1024
_CHECKS_PER_LIMIT: Final = 4
# This many connections above the limit get an answer, 503 or that of a health probe; further ones are cut.
_NUM_SPARE: Final = 32
_LOG_SECONDS: Final = 60.0
_HEALTH: Final = b"/health/"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Limits on how long a caller may take, in seconds, and on the number of connections.

    Attributes:
        head_seconds: for the line and the headers of one request.
        body_seconds: between two chunks of a body.
        read_seconds: without reading any of a response.
        max_connections: at once in this process.
    """

    head_seconds: float
    body_seconds: float
    read_seconds: float
    max_connections: int

    @property
    def check_seconds(self) -> float:
        """Interval at which a connection checks itself."""
        return min(self.head_seconds, self.body_seconds, self.read_seconds) / _CHECKS_PER_LIMIT


class Connection(HttpToolsProtocol):
    """One caller's connection, closed when the caller is too slow."""

    limits: ConnectionLimits
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
        self._is_surplus = False
        self._head_since: float | None = None  # None: not waiting for a head
        self._body_since: float | None = None  # when a body's last chunk arrived; None: not waiting for one
        self._linger_since: float | None = None  # when the response was complete and the body was not
        self._num_unused = 0  # bytes since the parser last reported a whole head or a chunk of a body
        self._num_unsent = 0
        self._unsent_since = 0.0  # when the caller last read some of the unsent bytes

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Start watching the connection, or cut it when there are far too many."""
        super().connection_made(transport)
        surplus = len(self.connections) - self.limits.max_connections
        if surplus > 0:
            self._log_full()
        if surplus > _NUM_SPARE:
            transport.abort()
            return
        self._is_surplus = surplus > 0
        self._head_since = self._unsent_since = self.loop.time()
        self._timer = self.loop.call_later(self.limits.check_seconds, self._check)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop watching the connection."""
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
        """Start the request, or refuse it when there are too many connections."""
        self._head_since, self._body_since, self._num_unused = None, self.loop.time(), 0
        self._is_surplus = self._is_surplus and len(self.connections) > self.limits.max_connections
        is_refused = self._is_surplus and not self.url.startswith(_HEALTH)
        self.app = _answer_full if is_refused else self.config.loaded_app
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Pass on a chunk of the body."""
        self._num_unused = 0
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
        super().on_response_complete()

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
        elif now - since > self.limits.body_seconds:
            self._refuse_slow(f"No body data arrived for {self.limits.body_seconds:g} s.")

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


def connection_class(limits: ConnectionLimits) -> type[Connection]:
    """Return the connection class that uvicorn uses under these limits."""
    return type("LimitedConnection", (Connection,), {"limits": limits})


async def _answer_full(scope: Scope, receive: Receive, send: Send) -> None:
    response = errors.response(UnavailableError("This server is at its connection limit; try again."))
    response.headers["Connection"] = "close"
    await response(scope, receive, send)
