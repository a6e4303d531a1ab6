"""Connections of callers: how long one may keep us waiting, and how many there may be.

Many run the API without a proxy, so it ends slow connections itself. Each connection looks at itself a few
times within the shortest limit; requests only note when something arrived.
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

# Of one request's line and headers, or of trailers; h11 and nginx take about as much.
_MAX_HEAD_BYTES: Final = 64 * 1024
_LOOKS_PER_LIMIT: Final = 4
# Above the limit so many connections more are answered, with 503 or as a health probe; others are cut.
_NUM_SPARE: Final = 32
_LOG_SECONDS: Final = 60.0
_HEALTH: Final = b"/health/"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """What a caller may take, in seconds, and how many callers there may be.

    Attributes:
        head_seconds: for the line and the headers of one request.
        body_seconds: between two pieces of a body.
        read_seconds: without taking anything of an answer.
        max_connections: at once in this process.
    """

    head_seconds: float
    body_seconds: float
    read_seconds: float
    max_connections: int

    @property
    def look_seconds(self) -> float:
        """How often a connection looks at itself."""
        return min(self.head_seconds, self.body_seconds, self.read_seconds) / _LOOKS_PER_LIMIT


class Connection(HttpToolsProtocol):
    """One caller's connection, which ends when the caller is too slow."""

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
        self._look: asyncio.TimerHandle | None = None
        self._is_surplus = False
        self._head_since: float | None = None  # None: no request's head is awaited
        self._body_since: float | None = None  # when a body's last piece came; None: none is awaited
        self._linger_since: float | None = None  # when the answer was complete and the body was not
        self._num_unused = 0  # bytes since the parser last told of a whole head or of a piece of a body
        self._num_unsent = 0
        self._unsent_since = 0.0  # when the caller last took a part of what is unsent

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Begin to watch the connection, or cut it where there are far too many."""
        super().connection_made(transport)
        surplus = len(self.connections) - self.limits.max_connections
        if surplus > 0:
            self._log_full()
        if surplus > _NUM_SPARE:
            transport.abort()
            return
        self._is_surplus = surplus > 0
        self._head_since = self._unsent_since = self.loop.time()
        self._look = self.loop.call_later(self.limits.look_seconds, self._look_at_myself)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop watching."""
        if self._look is not None:
            self._look.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what arrived, and refuse heads without end."""
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
            message = f"The line and the headers of a request may have {_MAX_HEAD_BYTES} bytes at most."
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "headers_too_large", message)

    def on_message_begin(self) -> None:
        """Await the head of a request that may have come together with the one before."""
        if self._head_since is None:
            self._head_since = self.loop.time()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note a header; trailers, which come with the body, are read by nobody."""
        if self._body_since is None:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start the request, or refuse it where there are too many connections."""
        self._head_since, self._body_since, self._num_unused = None, self.loop.time(), 0
        self._is_surplus = self._is_surplus and len(self.connections) > self.limits.max_connections
        is_refused = self._is_surplus and not self.url.startswith(_HEALTH)
        self.app = _answer_full if is_refused else self.config.loaded_app
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Hand on a piece of the body."""
        self._num_unused = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Await nothing more of this request."""
        self._body_since = self._linger_since = None
        self._num_unused = 0
        super().on_message_complete()
        if not self._is_answering() and self.timeout_keep_alive_task is None:
            self._head_since = self.loop.time()  # the answer came first; nobody times the next request

    def on_response_complete(self) -> None:
        """Give the rest of a body that nobody wanted only a moment more."""
        if self._body_since is not None:
            self._linger_since = self.loop.time()
        super().on_response_complete()

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _look_at_myself(self) -> None:
        now = self.loop.time()
        self._look = self.loop.call_later(self.limits.look_seconds, self._look_at_myself)
        self._note_unsent(now)
        if self._num_unsent and now - self._unsent_since > self.limits.read_seconds:
            self.transport.abort()
        elif self.transport.is_closing():
            return  # what is unsent is still watched
        elif self._body_since is not None:
            self._look_at_body(now, self._body_since)
        elif self._head_since is not None and now - self._head_since > self.limits.head_seconds:
            if self._is_answering():
                return  # half of the next request came early
            if self._num_unused == 0:
                self.transport.close()  # not one byte: nothing is there to be answered
                return
            self._refuse_slow(f"The headers took longer than {self.limits.head_seconds:g} s.")

    def _look_at_body(self, now: float, since: float) -> None:
        if self._linger_since is not None:
            if now - self._linger_since > self.limits.head_seconds:
                self.transport.close()
        elif self.flow.read_paused or self.cycle.waiting_for_100_continue:
            self._body_since = now  # the caller waits for us
        elif now - since > self.limits.body_seconds:
            self._refuse_slow(f"Nothing of the body came for {self.limits.body_seconds:g} s.")

    def _note_unsent(self, now: float) -> None:
        num_unsent = self.transport.get_write_buffer_size()
        if num_unsent == 0 or num_unsent < self._num_unsent:
            self._unsent_since = now
        self._num_unsent = num_unsent

    def _refuse_slow(self, message: str) -> None:
        self._refuse(HTTPStatus.REQUEST_TIMEOUT, "request_timeout", message)

    def _refuse(self, status: HTTPStatus, code: str, message: str) -> None:
        """Close the connection, with an answer where none has begun."""
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
            telemetry.logger().warning(telemetry.API_FULL, max_connections=self.limits.max_connections)


def connection_class(limits: ConnectionLimits) -> type[Connection]:
    """Return the kind of connection that uvicorn makes under these limits."""
    return type("LimitedConnection", (Connection,), {"limits": limits})


async def _answer_full(scope: Scope, receive: Receive, send: Send) -> None:
    response = errors.response(UnavailableError("This server has as many connections as it may; try again."))
    response.headers["Connection"] = "close"
    await response(scope, receive, send)
