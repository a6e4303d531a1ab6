"""One request to an engine over HTTP: a POST whose answer streams as server-sent events."""

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import httpx2
from httpx2 import EventSource

from jobs.errors import EngineError, EngineLostError, RetryableEngineError
from worker.engine.deadlines import CONNECT_SECONDS
from worker.engine.deltas import EngineDelta, TextDelta, TokenDelta
from worker.engine.engine import NOT_SENT, StreamEnd
from worker.engine.http import errors
from worker.engine.http.server import HttpServer
from worker.engine.request import Request
from worker.engine.storable import storable

_END_SECONDS: Final = 2.0
_DONE: Final = "[DONE]"
# The request's last byte is in the socket.
_SENT: Final = ("http11.send_request_body.complete", "http2.send_request_body.complete")


@dataclass(frozen=True, slots=True)
class HttpEnd:
    """The end of an answer, as its engine reports it.

    Attributes:
        error: why it failed; None if it is whole.
        is_limit: the engine ended it at a limit: `max_tokens`, or one of its own.
    """

    error: EngineError | None = None
    is_limit: bool = False


Event = EngineDelta | HttpEnd


class Dialect(Protocol):
    """How one kind of server writes a request and its answer; made anew for each request."""

    @property
    def path(self) -> str:
        """The path of the request."""

    @property
    def refuses_reliably(self) -> bool:
        """True if a 400 always means that the request is wrong."""

    def body(self) -> Mapping[str, Any]:
        """Build the JSON body."""

    def read(self, event: Mapping[str, Any]) -> list[Event]:
        """Read an event of the stream."""

    def stop(self) -> tuple[str, Mapping[str, Any]] | None:
        """Build the path and body that end the request cleanly. Returns None if only cutting it does."""


class HttpCall:
    """A `EngineCall` on a connection of its own."""

    def __init__(
        self, server: HttpServer, request: Request, *, dialect: Callable[[Request], Dialect]
    ) -> None:
        """Build the request's body.

        Raises:
            EngineError: a value of the request cannot be sent.
        """
        self._server = server
        self._dialect = dialect(request)
        self._max_tokens = request.max_tokens
        try:
            self._body = json.dumps(self._dialect.body(), allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            said = storable(f"{type(error).__name__}: {error}")
            raise EngineError("a value of the request cannot be sent to the engine", said=said) from error
        self._http: httpx2.AsyncClient | None = None
        self._reading: asyncio.Task[StreamEnd] | None = None
        self._stopping: list[asyncio.Task[None]] = []
        self._is_cancelled = False
        self._was_sent = False
        self._num_ids = 0

    async def connect(self) -> None:
        """Connect, waiting a few seconds at most."""
        with contextlib.suppress(httpx2.HTTPError):
            await self._client().get("/health", timeout=CONNECT_SECONDS)

    async def run(self, put: Callable[[EngineDelta], None], *, sent: Callable[[], None]) -> StreamEnd:
        """Send the request and follow its answer to the end."""
        if self._is_cancelled:
            return NOT_SENT
        self._reading = asyncio.create_task(self._send(put, sent))
        try:
            return await self._reading
        except asyncio.CancelledError:
            if not self._is_cancelled:
                self._reading.cancel()
                raise
            return StreamEnd(EngineLostError(), confirmed=False) if self._was_sent else NOT_SENT

    def stop(self) -> None:
        """Send a stop request, or cut the stream if the server takes none."""
        stop = self._dialect.stop()
        if self._reading is None or stop is None:
            self.cancel()
            return
        self._stopping.append(asyncio.create_task(self._send_stop(*stop)))

    def cancel(self) -> None:
        """Cut the stream."""
        self._is_cancelled = True
        if self._reading is not None:
            self._reading.cancel()

    async def close(self) -> None:
        """Close the connection; a stopped request has a moment to end by itself."""
        await asyncio.gather(*self._stopping)
        if self._stopping and self._reading is not None:
            await asyncio.wait([self._reading], timeout=_END_SECONDS)
        self.cancel()
        if self._reading is not None:
            await asyncio.wait([self._reading], timeout=_END_SECONDS)
        if self._http is not None:
            await self._http.aclose()

    async def _send(self, put: Callable[[EngineDelta], None], sent: Callable[[], None]) -> StreamEnd:
        async def trace(name: str, _info: object) -> None:
            if name in _SENT:
                self._was_sent = True
                sent()

        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        posted = self._client().stream(
            "POST", self._dialect.path, content=self._body, headers=headers, extensions={"trace": trace}
        )
        try:
            async with posted as answer:
                if not answer.is_success:
                    await answer.aread()
                    return errors.refused(answer, is_certain=self._dialect.refuses_reliably)
                return await self._follow(answer, put)
        except (httpx2.HTTPError, httpx2.StreamError) as error:
            return errors.broken(error, was_sent=self._was_sent)

    async def _follow(self, answer: httpx2.Response, put: Callable[[EngineDelta], None]) -> StreamEnd:
        """Read to the end of the stream. A success status is no success: an error may come as an event."""
        end: HttpEnd | None = None
        try:
            async for event in EventSource(answer, max_event_size=None):
                if event.data == _DONE:
                    break
                for found in self._events(event.data):
                    if isinstance(found, HttpEnd):
                        end = end or found
                    else:
                        self._count(found)
                        put(found)
        except httpx2.HTTPError as error:
            if end is None:
                return errors.broken(error, was_sent=True)
        if end is None:
            said = "the stream ended without a finish reason"
            return StreamEnd(RetryableEngineError(said=said), confirmed=False)
        return StreamEnd(end.error or self._cut_short(end), confirmed=True)

    def _events(self, data: str) -> list[Event]:
        try:
            parsed = json.loads(data)
            if isinstance(parsed, dict) and parsed.get("error"):
                return [HttpEnd(RetryableEngineError(said=storable(errors.message_of(parsed))))]
            return self._dialect.read(parsed)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            said = storable(f"{type(error).__name__}: {error}")
            return [HttpEnd(RetryableEngineError("the engine's answer cannot be read", said=said))]

    def _count(self, delta: EngineDelta) -> None:
        match delta:
            case TokenDelta(ids):
                self._num_ids += len(ids)
            case TextDelta():
                self._num_ids = self._max_tokens  # text alone does not show how many tokens it was

    def _cut_short(self, end: HttpEnd) -> EngineError | None:
        """Return the error of an answer that ended at a limit which is not ours."""
        if not end.is_limit or self._num_ids >= self._max_tokens:
            return None
        return EngineError(
            f"the engine ended the answer after {self._num_ids} of {self._max_tokens} tokens, at a limit of"
            " its own; set LONGBATCH_ENGINE__MAX_SEQ_LEN to its context length"
        )

    async def _send_stop(self, path: str, body: Mapping[str, Any]) -> None:
        with contextlib.suppress(httpx2.HTTPError):
            async with self._server.client() as http:
                await http.post(path, json=body, timeout=CONNECT_SECONDS)

    def _client(self) -> httpx2.AsyncClient:
        if self._http is None:
            self._http = self._server.client()
        return self._http
