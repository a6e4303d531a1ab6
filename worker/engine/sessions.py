"""HTTP to an engine: sessions, what breaks them, and bodies of which only the beginning is read.

aiohttp parses in C: an event of a stream costs a quarter of the CPU that it costs with httpx2.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Final

import aiohttp

from worker.engine.certificates import trusted
from worker.engine.deadlines import CONNECT_SECONDS

# What a connection that breaks, or never comes about, raises.
BROKEN: Final = (aiohttp.ClientError, OSError)


def session(url: str | None = None, *, headers: Mapping[str, str] | None = None) -> aiohttp.ClientSession:
    """Make a session with a connection for each request, on a running loop. It waits for output forever.

    No proxy: the server is the operator's own. Certificates are verified.

    Args:
        url: of the server, to which paths are relative; None: requests name whole URLs.
        headers: of every request.
    """
    return aiohttp.ClientSession(
        url,
        headers=headers,
        timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_SECONDS),
        # A server may close a connection that is kept alive just as a request is sent on it.
        connector=aiohttp.TCPConnector(limit=0, force_close=True, ssl=trusted()),
        cookie_jar=aiohttp.DummyCookieJar(),
    )


def is_success(status: int) -> bool:
    """Return True for a status of 200 to 299."""
    return status // 100 == 2


def is_redirect(status: int) -> bool:
    """Return True for a status of 300 to 399."""
    return status // 100 == 3


def reason_of(error: Exception) -> str:
    """Say why a connection broke; for one that was never made, in the operating system's words."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"no connection: {error.os_error}"
    return str(error) or type(error).__name__


def redirect_of(answer: aiohttp.ClientResponse) -> str | None:
    """Return where the answer redirects to; None if it does not."""
    return answer.headers.get("Location") if is_redirect(answer.status) else None


async def parts(
    answer: aiohttp.ClientResponse, *, pause: Callable[[], float] = lambda: 0.0
) -> AsyncIterator[bytes]:
    """Yield a body as it comes.

    aiohttp closes the connection at a chunk that it cannot parse, and would then wait for more forever.

    Args:
        answer: its body is read.
        pause: returns how many seconds to stop reading for after a part; what arrives meanwhile is one part.

    Raises:
        aiohttp.ClientError: the connection broke, or the body cannot be read.
    """
    body = answer.content

    def end(closed: asyncio.Future[None]) -> None:
        error = None if closed.cancelled() else closed.exception()
        if not body.is_eof() and body.exception() is None:
            body.set_exception(aiohttp.ClientPayloadError(str(error or "the body cannot be read")))

    connection = answer.connection
    protocol = None if connection is None else connection.protocol
    transport = None if connection is None else connection.transport
    is_plain = transport is not None and transport.get_extra_info("ssl_object") is None
    if protocol is not None and protocol.closed is not None:  # otherwise the whole body is here
        protocol.closed.add_done_callback(end)
    async for part in body.iter_any():
        yield part
        if transport is not None and not body.is_eof() and (seconds := pause()):
            # Only the transport: a paused protocol parses a single chunk of what it receives next, and fails
            # if the connection has broken. Not with TLS: uvloop drops what a server sends before it closes.
            if is_plain:
                transport.pause_reading()
            await asyncio.sleep(seconds)
            if is_plain:
                transport.resume_reading()


async def beginning(answer: aiohttp.ClientResponse, *, max_bytes: int) -> bytes:
    """Read the beginning of a body, which may be endless."""
    found = bytearray()
    async for part in parts(answer):
        found += part
        if len(found) >= max_bytes:
            break
    return bytes(found[:max_bytes])
