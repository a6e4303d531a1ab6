"""One request to an engine over HTTP: a POST whose answer streams as server-sent events."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import aiohttp

from jobs.errors import EngineError, EngineLostError, RetryableEngineError
from worker.engine.deadlines import CONNECT_SECONDS
from worker.engine.deltas import CachedPrompt, EngineDelta, TextDelta, TokenDelta, VectorDelta, joined
from worker.engine.engine import NOT_SENT, StreamEnd
from worker.engine.http import errors
from worker.engine.http.server import HttpServer
from worker.engine.request import Request
from worker.engine.sessions import BROKEN, beginning, is_success, parts, redirect_of
from worker.engine.storable import storable

# What follows the end of an answer: usage, an end mark, the end of the response.
_END_SECONDS: Final = 2.0
_DONE: Final = b"[DONE]"
# Each read wakes the engine loop. With more streams than this, reads keep its core busy and delay starts and
# ends of jobs; so each stream is then read five times a second, several tokens at a time.
_MANY_STREAMS: Final = 256
_PAUSE_SECONDS: Final = 0.2
# SGLang repeats all token ids in each event: about 1 MB for 131,072 of them.
_MAX_EVENT_BYTES: Final = 16 * 2**20
# Of an error's body; a message is much shorter.
_MAX_ERROR_BYTES: Final = 2**16
# Of a request. A part is written once there is room for it; what was written arrives, even if it is then cut.
_PART_BYTES: Final = 2**16


@dataclass(frozen=True, slots=True)
class HttpEnd:
    """The end of an answer, as its engine reports it.

    Attributes:
        error: why it failed; None if it is whole.
        is_limit: the engine ended it at a limit: `max_tokens`, or one of its own.
        confirmed: the engine holds nothing for the request.
        rest: the request that continues the answer; None if nothing is missing.
    """

    error: EngineError | None = None
    is_limit: bool = False
    confirmed: bool = True
    rest: "Dialect | None" = None

    @property
    def is_last(self) -> bool:
        """True if what follows in the stream is not wanted, or cannot be understood."""
        return self.rest is not None or not self.confirmed


Event = EngineDelta | HttpEnd


class Dialect(Protocol):
    """How one kind of server writes a request and its answer; made anew for each request."""

    @property
    def path(self) -> str:
        """The path of the request."""

    @property
    def refuses_reliably(self) -> bool:
        """True if a 400 always means that the request is wrong."""

    @property
    def reports_own_end(self) -> bool:
        """True if an error in the stream is the engine's own: it then holds nothing for the request."""

    def body(self) -> Mapping[str, Any]:
        """Build the JSON body."""

    def read(self, event: Mapping[str, Any]) -> list[Event]:
        """Read an event of the stream, or the whole answer of a server that did not stream it."""

    def stop(self) -> tuple[str, Mapping[str, Any]] | None:
        """Build the path and body that end the request cleanly. Returns None if only cutting it does."""


_followed = set["HttpCall"]()  # calls whose streams the engine loop reads


class HttpCall:
    """An `EngineCall` on a connection of its own."""

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
        self._request_id = request.request_id
        self._is_estimated = bool(request.turns)
        self._body = _written(self._dialect)
        self._http: aiohttp.ClientSession | None = None
        self._reading: asyncio.Task[StreamEnd] | None = None
        self._stopping: list[asyncio.Task[None]] = []
        self._is_cancelled = False
        self._may_arrive = False  # the server may get the whole request, also if it is cut now
        self._was_sent = False
        self._num_ids = 0

    async def connect(self) -> None:
        """Do nothing: a request over HTTP makes its own connection."""

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
            return StreamEnd(EngineLostError(), confirmed=False) if self._may_arrive else NOT_SENT

    def stop(self) -> None:
        """Send a stop request, or cut the stream if the server takes none."""
        stop = self._dialect.stop()
        if not self._was_sent or stop is None:  # the server does not know a request that is still on its way
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
            await self._http.close()

    async def _send(self, put: Callable[[EngineDelta], None], sent: Callable[[], None]) -> StreamEnd:
        """Send the request, and then those that continue its answer."""
        while True:
            try:
                end = await self._exchange(put, sent)
            except BROKEN as error:
                return errors.broken(error, was_sent=self._may_arrive)
            if isinstance(end, StreamEnd):
                return end
            if end.rest is None:
                return StreamEnd(end.error or self._cut_short(end), confirmed=end.confirmed)
            self._dialect = end.rest
            self._body = _written(self._dialect)

    async def _exchange(
        self, put: Callable[[EngineDelta], None], sent: Callable[[], None]
    ) -> StreamEnd | HttpEnd:
        async def upload() -> AsyncIterator[bytes]:
            last = (len(self._body) - 1) // _PART_BYTES * _PART_BYTES
            for begin in range(0, last, _PART_BYTES):
                yield self._body[begin : begin + _PART_BYTES]
            self._may_arrive = True
            yield self._body[last:]
            self._was_sent = True  # nearly all of it is in the socket
            sent()

        headers = {
            "Content-Type": "application/json",
            "Content-Length": str(len(self._body)),
            "Accept": "text/event-stream",
            "X-Request-Id": self._request_id,  # for the server's log
        }
        posted = self._session().post(
            self._dialect.path, data=upload(), headers=headers, allow_redirects=False
        )
        async with posted as answer:
            if is_success(answer.status):
                return await self._follow(answer, put)
            return errors.refused(
                answer.status,
                await _said(answer),
                is_certain=self._dialect.refuses_reliably,
                is_estimated=self._is_estimated,
            )

    async def _follow(
        self, answer: aiohttp.ClientResponse, put: Callable[[EngineDelta], None]
    ) -> StreamEnd | HttpEnd:
        """Read to the end of the answer. A success status is no success: an error may come as an event."""
        end: HttpEnd | None = None
        _followed.add(self)
        try:
            async with asyncio.timeout(None) as patience:
                async for events in _events_of(answer):
                    end = self._take(events, put, end=end)
                    if _DONE in events or (end is not None and end.is_last):
                        break
                    if end is not None and patience.when() is None:
                        patience.reschedule(asyncio.get_running_loop().time() + _END_SECONDS)
        except BROKEN as error:
            if end is None:
                return errors.broken(error, was_sent=True)
        except asyncio.CancelledError:
            if end is None or not self._is_cancelled:
                raise
        finally:
            _followed.discard(self)
        if end is None:
            said = "the stream ended without a finish reason"
            return StreamEnd(RetryableEngineError(said=said), confirmed=False)
        return end

    def _take(
        self, events: Sequence[bytes], put: Callable[[EngineDelta], None], *, end: HttpEnd | None
    ) -> HttpEnd | None:
        """Pass on the deltas of events that arrived together, their tokens as one delta.

        Returns:
            The end of the answer, once it has come.
        """
        deltas = list[EngineDelta]()
        for event in events:
            if event == _DONE or (end is not None and end.is_last):
                break
            for found in self._read(event):
                if isinstance(found, HttpEnd):
                    end = end or found
                    continue
                # After the end of an answer only its usage may come.
                if end is None or (end.error is None and not isinstance(found, TokenDelta)):
                    self._count(found)
                    deltas.append(found)
        for each in joined(deltas):
            put(each)
        return end

    def _read(self, data: bytes) -> list[Event]:
        try:
            parsed = json.loads(data.decode(errors="replace"))
            if isinstance(parsed, dict) and parsed.get("error"):
                return [HttpEnd(self._error_of(parsed), confirmed=self._dialect.reports_own_end)]
            return self._dialect.read(parsed)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
            said = storable(f"{type(error).__name__}: {error}")
            error_of_ours = RetryableEngineError("the engine's answer cannot be read", said=said)
            return [HttpEnd(error_of_ours, confirmed=False)]

    def _error_of(self, event: Mapping[str, Any]) -> EngineError:
        """Translate an error event. Before any output, it may be the refusal of a wrong request."""
        told = event["error"]
        status = told.get("code") if isinstance(told, dict) else None
        return errors.in_stream(
            status,
            storable(errors.message_of(event)),
            is_certain=self._dialect.refuses_reliably and not self._num_ids,
            is_estimated=self._is_estimated,
        )

    def _count(self, delta: EngineDelta) -> None:
        match delta:
            case TokenDelta(ids):
                self._num_ids += len(ids)
            case TextDelta():
                self._num_ids = self._max_tokens  # text alone does not show how many tokens it was
            case CachedPrompt() | VectorDelta():
                pass

    def _cut_short(self, end: HttpEnd) -> EngineError | None:
        """Return the error of an answer that ended at a limit which is not ours."""
        if not end.is_limit or self._num_ids >= self._max_tokens:
            return None
        return EngineError(
            f"the engine ended the answer after {self._num_ids} of {self._max_tokens} tokens, at a limit of"
            " its own; set LONGBATCH_ENGINE__MAX_SEQ_LEN to its context length"
        )

    async def _send_stop(self, path: str, body: Mapping[str, Any]) -> None:
        try:
            async with (
                asyncio.timeout(CONNECT_SECONDS),
                self._server.session() as http,
                http.post(path, json=body, allow_redirects=False) as answer,
            ):
                was_taken = is_success(answer.status)
        except BROKEN:
            was_taken = False
        if not was_taken:
            self.cancel()

    def _session(self) -> aiohttp.ClientSession:
        if self._http is None:
            self._http = self._server.session()
        return self._http


def _written(dialect: Dialect) -> bytes:
    try:
        return json.dumps(dialect.body(), allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        said = storable(f"{type(error).__name__}: {error}")
        raise EngineError("a value of the request cannot be sent to the engine", said=said) from error


async def _events_of(answer: aiohttp.ClientResponse) -> AsyncIterator[list[bytes]]:
    """Yield the data of events in the batches in which they arrive, none of them empty.

    A JSON document is one event.

    Raises:
        aiohttp.ClientError: the connection broke, or an event is too long.
    """
    if answer.content_type == "application/json":
        yield [await beginning(answer, max_bytes=_MAX_EVENT_BYTES)]
        return
    rest, data = b"", list[bytes]()

    def pause() -> float:
        """Return how many seconds to wait after a read; inside an event none, or long ones would pile up."""
        return 0.0 if rest or data or len(_followed) <= _MANY_STREAMS else _PAUSE_SECONDS

    async for part in parts(answer, pause=pause):
        events = list[bytes]()
        *lines, rest = (rest + part).split(b"\n")
        if len(rest) + sum(map(len, data)) > _MAX_EVENT_BYTES:
            raise aiohttp.ClientPayloadError(f"an event of more than {_MAX_EVENT_BYTES} bytes")
        for line in lines:
            name, _, value = line.removesuffix(b"\r").partition(b":")
            if name == b"data":
                data.append(value.removeprefix(b" "))
            elif line in {b"", b"\r"}:  # one that begins with a colon is a comment
                if event := b"\n".join(data):
                    events.append(event)
                data = []
        if events:
            yield events


async def _said(answer: aiohttp.ClientResponse) -> str:
    try:
        body = await beginning(answer, max_bytes=_MAX_ERROR_BYTES)
    except BROKEN:  # its status is known
        body = b""
    return errors.said_by(body, reason=answer.reason or "", redirect=redirect_of(answer))
