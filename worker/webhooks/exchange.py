"""One HTTP exchange with an untrusted server: never at a private address, always within a deadline."""

import asyncio
import socket
import ssl
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Final

from jobs.webhooks import ParsedUrl, WebhookUrlError, check_url
from worker.webhooks.connect import ExchangeError, Failure, Resolve, connect, resolve_host
from worker.webhooks.protocol import ExchangeProtocol
from worker.webhooks.proxy import Proxy, targets, tunnel

_MAX_RETRY_SECONDS: Final = 10**8  # the event is given up long before


@dataclass(frozen=True, slots=True)
class ExchangeResult:
    """The result of an exchange: exactly one of `status` and `error_code` is set.

    Attributes:
        status: the final HTTP status; the body is ignored, even if it breaks off.
        error_code: why there is no status.
        num_bytes: received, at most `MAX_RESPONSE_BYTES`.
        latency: from the call to its end.
        retry_after: delay that the response's Retry-After header asks for.
    """

    status: int | None
    error_code: Failure | None
    num_bytes: int
    latency: timedelta
    retry_after: timedelta | None = None


async def post(
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    *,
    allowed_hosts: Collection[str],
    deadline: timedelta,
    proxy: Proxy | None = None,
    resolve: Resolve = resolve_host,
    tls: ssl.SSLContext | None = None,
) -> ExchangeResult:
    """Check the URL again, as the allowed hosts may have changed, and POST the body.

    Args:
        url: destination.
        body: sent unchanged.
        headers: as for `exchange`.
        allowed_hosts: hosts that may be private, on plain http and on any port.
        deadline: as for `exchange`.
        proxy: as for `exchange`.
        resolve: maps names to addresses.
        tls: None means the system's certificate authorities.
    """
    try:
        parsed = check_url(url, allowed_hosts=allowed_hosts)
    except WebhookUrlError:
        return ExchangeResult(status=None, error_code=Failure.URL_REFUSED, num_bytes=0, latency=timedelta(0))
    return await exchange(parsed, body, headers, deadline=deadline, proxy=proxy, resolve=resolve, tls=tls)


async def exchange(
    url: ParsedUrl,
    body: bytes,
    headers: Mapping[str, str],
    *,
    deadline: timedelta,
    proxy: Proxy | None = None,
    resolve: Resolve = resolve_host,
    tls: ssl.SSLContext | None = None,
) -> ExchangeResult:
    """POST the body within `deadline`; return network failures as values.

    The name is resolved once, every address of it must be public (or its host allowed), and the connection
    goes to one of exactly these addresses, by way of the proxy if there is one. A proxy that resolves names
    gets the name instead, and must refuse private addresses itself. TLS is between us and the receiver either
    way. Redirects are not followed, and the environment's proxies are ignored.

    Args:
        url: destination.
        body: sent unchanged.
        headers: ASCII, besides Host, Content-Length, Accept-Encoding and Connection, which are set here.
        deadline: wall-clock time for everything, from resolving the name to reading the response.
        proxy: None: connect to the receiver directly.
        resolve: maps names to addresses.
        tls: None means the system's certificate authorities.
    """
    loop = asyncio.get_running_loop()
    started = loop.time()
    until = started + deadline.total_seconds()
    protocol = ExchangeProtocol(url, body, headers, tls=tls or _system_tls())
    failure: Failure | None = None
    late = Failure.TIMED_OUT
    try:
        async with asyncio.timeout_at(until):
            if proxy is None:
                connected = await connect(url, resolve, until=until)
            else:
                hosts = await targets(url, proxy, resolve)
                late = Failure.PROXY_TIMED_OUT
                connected, protocol.early = await tunnel(hosts, url.port, proxy, resolve, until=until)
                late = Failure.TIMED_OUT
            await _exchange(protocol, connected)
        failure = protocol.failure
    except TimeoutError:
        failure = late
    except OSError:
        failure = Failure.CONNECTION_LOST
    except ExchangeError as error:
        failure = error.failure
    return ExchangeResult(
        status=protocol.status,
        error_code=failure if protocol.status is None else None,
        num_bytes=protocol.num_bytes,
        latency=timedelta(seconds=loop.time() - started),
        retry_after=_retry_after(protocol.retry_after),
    )


async def _exchange(protocol: ExchangeProtocol, connected: socket.socket) -> None:
    """Run the conversation to its end, and close the connection."""
    try:
        await asyncio.get_running_loop().create_connection(lambda: protocol, sock=connected)
        await protocol.over
    finally:
        # A connection may have been made while its task was cancelled: the conversation knows it first.
        protocol.abort()
        connected.close()


@cache
def _system_tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def _retry_after(given: bytes) -> timedelta | None:
    """Parse Retry-After (RFC 9110, 10.2.3); None if it is invalid or in the past."""
    text = given.decode("latin-1").strip()
    if text.isascii() and text.isdigit():
        return timedelta(seconds=min(int(text), _MAX_RETRY_SECONDS))
    try:
        wanted = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):  # a year of eleven digits
        return None
    if wanted.tzinfo is None:
        wanted = wanted.replace(tzinfo=UTC)
    return max(wanted - datetime.now(UTC), timedelta(0)) or None
