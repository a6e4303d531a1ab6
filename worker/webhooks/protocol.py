"""The asking side of one HTTP/1.1 exchange: what was sent, what came back, and when enough has come."""

import asyncio
import ssl
from collections.abc import Mapping
from typing import Final, cast

import h11

from jobs.webhooks import ParsedUrl
from worker.webhooks.connect import Failure
from worker.webhooks.tls import Tls

MAX_RESPONSE_BYTES: Final = 16 * 1024  # status, headers and body together; nobody reads the body
MAX_RECEIVED_BYTES: Final = 64_000  # from the network: with TLS's own, whatever it makes of them
_MAX_FIELD_BYTES: Final = 40  # more than any date has
_SWITCHING: Final = 101


class Conversation(asyncio.BufferedProtocol):
    """Sends a request as soon as it is connected, and reads until the answer's end or limit.

    Attributes:
        over: done when nothing more is to come that matters; the connection is cut then.
        status: the final one; None until it and all its headers came.
        failure: why it ended; counts for nothing where there is a status.
        retry_after: the final answer's header of this name, cut at 40 bytes.
        num_bytes: of the answer, at most `MAX_RESPONSE_BYTES`.
    """

    def __init__(
        self, url: ParsedUrl, body: bytes, headers: Mapping[str, str], *, tls: ssl.SSLContext
    ) -> None:
        """Not connected.

        Args:
            url: where the request goes.
            body: as it is sent.
            headers: besides those that are set here.
            tls: for https.

        Raises:
            h11.LocalProtocolError: a header, or the URL, has what none may have.
        """
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.status: int | None = None
        self.failure: Failure | None = None
        self.retry_after = b""
        self.num_bytes = 0
        self._tls = Tls(tls, url.host) if url.scheme == "https" else None
        self._transport: asyncio.Transport | None = None
        self._buffer = memoryview(bytearray(MAX_RESPONSE_BYTES))
        self._num_received = 0
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_RESPONSE_BYTES)
        self._request = self._written(url, body, headers)

    def abort(self) -> None:
        """The connection is cut, if there is one."""
        if self._transport is not None:
            self._transport.abort()  # one that is only closed would go on reading

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The request is on its way, or the handshake before it."""
        self._transport = cast("asyncio.Transport", transport)
        if self._tls is None:
            self._transport.write(self._request)
        else:
            self._tls.shake_hands()
            self._transport.write(self._tls.unsent())

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  the limits decide
        """Where the next bytes go, never more than may still come; behind the end they count for nothing."""
        if self.over.done():
            return self._buffer
        left = MAX_RECEIVED_BYTES - self._num_received
        if self._tls is None:
            left = min(left, MAX_RESPONSE_BYTES - self.num_bytes)
        return self._buffer[:left]

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes came."""
        if self.over.done():
            return
        self._num_received += nbytes
        received = bytes(self._buffer[:nbytes])
        heard = received if self._tls is None else self._deciphered(self._tls, received)
        heard = heard[: MAX_RESPONSE_BYTES - self.num_bytes]
        self.num_bytes += len(heard)
        if heard:
            self._hear(heard)
        if self.num_bytes >= MAX_RESPONSE_BYTES or self._num_received >= MAX_RECEIVED_BYTES:
            self._end(Failure.RESPONSE_TOO_LARGE)

    def eof_received(self) -> None:
        """The other side says nothing more."""
        if not self._is_shaking_hands and not self.over.done():
            self._hear(b"")  # some answers end so
        self._end(Failure.PROTOCOL_ERROR)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed, or broke."""
        self._end(Failure.CONNECTION_LOST if exc else Failure.PROTOCOL_ERROR)

    # What comes of it.

    def _written(self, url: ParsedUrl, body: bytes, headers: Mapping[str, str]) -> bytes:
        """The request in one piece, so that a small one is one packet."""
        fields = {
            "Host": url.authority,
            **headers,
            "Content-Length": str(len(body)),
            "Accept-Encoding": "identity",
            "Connection": "close",
        }
        asked = h11.Request(method="POST", target=url.target, headers=list(fields.items()))
        parts = [self._http.send(each) for each in (asked, h11.Data(data=body), h11.EndOfMessage())]
        return b"".join(part or b"" for part in parts)

    @property
    def _is_shaking_hands(self) -> bool:
        return self._tls is not None and not self._tls.is_open

    def _deciphered(self, tls: Tls, received: bytes) -> bytes:
        try:
            if tls.is_open:
                heard = tls.hear(received)
            else:
                tls.shake_hands(received)
                heard = b""
                if tls.is_open:
                    tls.say(self._request)
                    heard = tls.hear()
        except ssl.SSLError:
            self._end(Failure.CONNECTION_LOST)
            return b""
        if self._transport is not None and (unsent := tls.unsent()):
            self._transport.write(unsent)
        return heard

    def _hear(self, received: bytes) -> None:
        """These bytes belong to the answer; none: it has no more."""
        try:
            self._http.receive_data(received)
            while not self.over.done():
                event = self._http.next_event()
                if event is h11.NEED_DATA or event is h11.PAUSED:
                    return
                self._take(event)
        except h11.RemoteProtocolError:
            self._end(Failure.PROTOCOL_ERROR)

    def _take(self, event: h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]) -> None:
        if isinstance(event, h11.Response):
            self.status = event.status_code
            given = (value for name, value in event.headers if name == b"retry-after")
            self.retry_after = next(given, b"")[:_MAX_FIELD_BYTES]
        elif isinstance(event, h11.InformationalResponse):
            if event.status_code == _SWITCHING:  # nobody asked for another protocol
                self._end(Failure.PROTOCOL_ERROR)
        elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
            self._end(Failure.PROTOCOL_ERROR)

    def _end(self, failure: Failure) -> None:
        """Nothing more is to come, for this reason."""
        if not self.over.done():
            if self._is_shaking_hands and failure != Failure.RESPONSE_TOO_LARGE:
                failure = Failure.TLS_FAILED
            self.failure = failure
            self.over.set_result(None)
            self.abort()
