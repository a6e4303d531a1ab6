"""The asking side of one HTTP/1.1 exchange: what was sent, what came back, and when enough has come."""

import asyncio
from typing import Final, cast

import httptools

from worker.network import Failure

MAX_RESPONSE_BYTES: Final = 16 * 1024  # status, headers and body together; nobody reads the body
_MAX_FIELD_BYTES: Final = 40  # more than any date has
_FIRST_FINAL: Final = 200  # statuses below it announce another
_SWITCHING: Final = 101


class Conversation(asyncio.BufferedProtocol):
    """Sends a request as soon as it is connected, and reads until the answer's end or limit.

    Attributes:
        over: done when nothing more is to come that matters.
        status: the final one; None until it and all its headers came.
        failure: why there will be no status.
        retry_after: the final answer's header of this name, cut at 40 bytes.
        num_bytes: received, at most `MAX_RESPONSE_BYTES`.
    """

    def __init__(self, request: bytes) -> None:
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.status: int | None = None
        self.failure: Failure | None = None
        self.retry_after = b""
        self.num_bytes = 0
        self._request = request
        self._transport: asyncio.Transport | None = None
        self._buffer = memoryview(bytearray(MAX_RESPONSE_BYTES))
        self._parser = httptools.HttpResponseParser(self)

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The request is on its way."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._request)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  the limit decides
        """Where the next bytes go, never more than may still come; behind the end they count for nothing."""
        return self._buffer if self.over.done() else self._buffer[self.num_bytes :]

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes came."""
        if self.over.done():
            return
        received = self._buffer[self.num_bytes : self.num_bytes + nbytes]
        self.num_bytes += nbytes
        try:
            self._parser.feed_data(received)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._end(Failure.PROTOCOL_ERROR)
        if self.num_bytes >= MAX_RESPONSE_BYTES:
            self._end(Failure.RESPONSE_TOO_LARGE)

    def eof_received(self) -> None:
        """The other side says nothing more."""
        self._end(Failure.PROTOCOL_ERROR)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed, or broke."""
        self._end(Failure.CONNECTION_LOST if exc else Failure.PROTOCOL_ERROR)

    # What httptools calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header came, of the final answer or of one that announces it."""
        if name.lower() == b"retry-after" and not self.retry_after:
            self.retry_after = value[:_MAX_FIELD_BYTES]

    def on_headers_complete(self) -> None:
        """All headers of an answer came."""
        status = self._parser.get_status_code()
        if status >= _FIRST_FINAL:
            self.status = status
        else:
            self.retry_after = b""
            if status == _SWITCHING:  # nobody asked for another protocol
                self._end(Failure.PROTOCOL_ERROR)

    def on_message_complete(self) -> None:
        """An answer's body is whole."""
        if self.status is not None:
            self._end(None)

    def _end(self, failure: Failure | None) -> None:
        """What breaks after the status counts for nothing."""
        if not self.over.done():
            self.failure = failure if self.status is None else None
            self.over.set_result(None)
            if self._transport is not None:
                self._transport.abort()  # a transport that is only closed would go on reading
