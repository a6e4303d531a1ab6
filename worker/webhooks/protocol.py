"""The client side of one HTTP/1.1 exchange: send the request, read the response up to a limit."""

import asyncio
import ssl
from collections.abc import Mapping
from typing import Final, cast

import h11

from jobs.webhooks import ParsedUrl
from worker.webhooks.connect import Failure
from worker.webhooks.tls import Tls

MAX_RESPONSE_BYTES: Final = 16 * 1024  # status, headers and body together; the body is never used
MAX_RECEIVED_BYTES: Final = 64_000  # from the network, including TLS overhead
_MAX_FIELD_BYTES: Final = 40  # more than any date needs
_SWITCHING: Final = 101


class ExchangeProtocol(asyncio.BufferedProtocol):
    """Sends a request once connected, and reads until the end of the response or a limit.

    Attributes:
        over: done when no more relevant bytes can arrive; the connection is cut then.
        status: the final one; None until it and all its headers arrived.
        failure: why it ended; meaningless if there is a status.
        retry_after: the final response's header of this name, cut at 40 bytes.
        num_bytes: of the response, at most `MAX_RESPONSE_BYTES`.
        early: what the peer sent before the protocol got its connection: at most as much as one read takes.
    """

    def __init__(
        self, url: ParsedUrl, body: bytes, headers: Mapping[str, str], *, tls: ssl.SSLContext
    ) -> None:
        """Prepare the request without connecting.

        Args:
            url: destination.
            body: sent unchanged.
            headers: in addition to those that are set here.
            tls: for https.

        Raises:
            h11.LocalProtocolError: a header or the URL contains something that HTTP forbids.
        """
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.status: int | None = None
        self.failure: Failure | None = None
        self.retry_after = b""
        self.num_bytes = 0
        self.early = b""
        self._tls = Tls(tls, url.host) if url.scheme == "https" else None
        self._transport: asyncio.Transport | None = None
        self._buffer = memoryview(bytearray(MAX_RESPONSE_BYTES))
        self._num_received = 0
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_RESPONSE_BYTES)
        self._request = self._serialize(url, body, headers)

    def abort(self) -> None:
        """Cut the connection, if there is one."""
        if self._transport is not None:
            self._transport.abort()  # close() would keep reading

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request, or start the TLS handshake before it."""
        self._transport = cast("asyncio.Transport", transport)
        if self._tls is None:
            self._transport.write(self._request)
        else:
            self._tls.shake_hands()
            self._transport.write(self._tls.take_outgoing())
        if self.early:
            self._receive(self.early)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  the limits decide
        """Return a buffer as large as the bytes that may still arrive."""
        if self.over.done():
            return self._buffer
        left = MAX_RECEIVED_BYTES - self._num_received
        if self._tls is None:
            left = min(left, MAX_RESPONSE_BYTES - self.num_bytes)
        return self._buffer[:left]

    def buffer_updated(self, nbytes: int) -> None:
        """Parse the `nbytes` bytes that arrived."""
        if not self.over.done():
            self._receive(bytes(self._buffer[:nbytes]))

    def _receive(self, received: bytes) -> None:
        self._num_received += len(received)
        plain = received if self._tls is None else self._decrypt(self._tls, received)
        plain = plain[: MAX_RESPONSE_BYTES - self.num_bytes]
        self.num_bytes += len(plain)
        if plain:
            self._parse(plain)
        if self.num_bytes >= MAX_RESPONSE_BYTES or self._num_received >= MAX_RECEIVED_BYTES:
            self._end(Failure.RESPONSE_TOO_LARGE)

    def eof_received(self) -> None:
        """Handle the end of the peer's stream."""
        if not self._is_shaking_hands and not self.over.done():
            self._parse(b"")  # the end of the stream ends some responses
        self._end(Failure.PROTOCOL_ERROR)

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle a connection that closed or broke."""
        self._end(Failure.CONNECTION_LOST if exc else Failure.PROTOCOL_ERROR)

    # Internals.

    def _serialize(self, url: ParsedUrl, body: bytes, headers: Mapping[str, str]) -> bytes:
        """Serialize the request at once, so that a small one is one packet."""
        fields = {
            "Host": url.authority,
            **headers,
            "Content-Length": str(len(body)),
            "Accept-Encoding": "identity",
            "Connection": "close",
        }
        request = h11.Request(method="POST", target=url.target, headers=list(fields.items()))
        events = [self._http.send(each) for each in (request, h11.Data(data=body), h11.EndOfMessage())]
        return b"".join(event or b"" for event in events)

    @property
    def _is_shaking_hands(self) -> bool:
        return self._tls is not None and not self._tls.is_open

    def _decrypt(self, tls: Tls, received: bytes) -> bytes:
        try:
            if tls.is_open:
                plain = tls.decrypt(received)
            else:
                tls.shake_hands(received)
                plain = b""
                if tls.is_open:
                    tls.encrypt(self._request)
                    plain = tls.decrypt()
        except ssl.SSLError:
            self._end(Failure.CONNECTION_LOST)
            return b""
        if self._transport is not None and (outgoing := tls.take_outgoing()):
            self._transport.write(outgoing)
        return plain

    def _parse(self, received: bytes) -> None:
        """Parse bytes of the response; no bytes mean that it has ended."""
        try:
            self._http.receive_data(received)
            while not self.over.done():
                event = self._http.next_event()
                if event is h11.NEED_DATA or event is h11.PAUSED:
                    return
                self._handle(event)
        except h11.RemoteProtocolError:
            self._end(Failure.PROTOCOL_ERROR)

    def _handle(self, event: h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]) -> None:
        if isinstance(event, h11.Response):
            self.status = event.status_code
            given = (value for name, value in event.headers if name == b"retry-after")
            self.retry_after = next(given, b"")[:_MAX_FIELD_BYTES]
        elif isinstance(event, h11.InformationalResponse):
            if event.status_code == _SWITCHING:  # we requested no other protocol
                self._end(Failure.PROTOCOL_ERROR)
        elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
            self._end(Failure.PROTOCOL_ERROR)

    def _end(self, failure: Failure) -> None:
        """End the conversation for this reason, unless it has ended already."""
        if not self.over.done():
            if self._is_shaking_hands and failure != Failure.RESPONSE_TOO_LARGE:
                failure = Failure.TLS_FAILED
            self.failure = failure
            self.over.set_result(None)
            self.abort()
