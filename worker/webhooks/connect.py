"""Connections that never lead to a private address."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from enum import StrEnum
from ipaddress import ip_address
from typing import Final

from jobs.webhooks import ParsedUrl
from jobs.webhooks.addresses import is_allowed_address

MAX_ADDRESSES: Final = 8
# Roughly what a remote server may put into the kernel before we read it, and how much we read at once.
_RECEIVE_BUFFER_BYTES: Final = 16 * 1024

# Lists the addresses of a host in the order in which to try them; raises OSError if there are none.
Resolve = Callable[[str, int], Iterable[str]]


class Failure(StrEnum):
    """Why an exchange has no status."""

    URL_REFUSED = "url_refused"
    NAME_NOT_RESOLVED = "name_not_resolved"
    ADDRESS_REFUSED = "address_refused"
    CONNECT_FAILED = "connect_failed"
    TLS_FAILED = "tls_failed"
    TIMED_OUT = "timed_out"
    CONNECTION_LOST = "connection_lost"
    RESPONSE_TOO_LARGE = "response_too_large"
    PROTOCOL_ERROR = "protocol_error"
    PROXY_UNAVAILABLE = "proxy_unavailable"
    PROXY_AUTH_FAILED = "proxy_auth_failed"
    PROXY_REFUSED = "proxy_refused"
    PROXY_PROTOCOL_ERROR = "proxy_protocol_error"
    PROXY_TIMED_OUT = "proxy_timed_out"
    SECRET_UNREADABLE = "secret_unreadable"  # noqa: S105  # a code
    INTERNAL_ERROR = "internal_error"


class ExchangeError(Exception):
    """The exchange ended without a status."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure


def resolve_host(host: str, port: int) -> list[str]:
    """Return the system's addresses of a host, without duplicates; may block for long."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


async def connect(url: ParsedUrl, resolve: Resolve, *, until: float) -> socket.socket:
    """Connect a non-blocking socket to the first of the host's addresses that accepts.

    The name is resolved once, and every one of its addresses must be public, unless its host is allowed. The
    caller must enforce the deadline.

    Args:
        url: of the host and port.
        resolve: maps names to addresses; called in a thread, which is abandoned if it is late.
        until: the caller's deadline, by the loop's clock; divided among the addresses, so that one that
            swallows packets leaves time for the next.

    Raises:
        ExchangeError: the name has no address, one of them is refused, or none accepts a connection.
    """
    loop = asyncio.get_running_loop()
    addresses = await vetted_addresses(url, resolve)
    for number, address in enumerate(addresses):
        num_left = len(addresses) - number
        share = (until - loop.time()) / num_left if num_left > 1 else None
        connected = await connected_to(address, url.port, within=share)
        if connected is None:
            continue
        if not _leads_there(url, connected):
            connected.close()
            raise ExchangeError(Failure.ADDRESS_REFUSED)
        return connected
    raise ExchangeError(Failure.CONNECT_FAILED)


async def connected_to(address: str, port: int, *, within: float | None) -> socket.socket | None:
    """Connect to the address, or return None if it does not accept `within` seconds."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        connected = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    except OSError:  # a machine without this address family, or out of sockets
        return None
    try:
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        async with asyncio.timeout(within):
            # An address, not a name: the loop resolves nothing, so no second lookup can lead elsewhere.
            await asyncio.get_running_loop().sock_connect(connected, (address, port))
    except OSError:  # also raised on timeout
        connected.close()
        return None
    except BaseException:
        connected.close()
        raise
    return connected


async def vetted_addresses(url: ParsedUrl, resolve: Resolve) -> list[str]:
    """Return the host's addresses; a single refused address refuses the host.

    Raises:
        ExchangeError: it has none, or one is refused.
    """
    addresses = await look_up(url.host, url.port, resolve)
    if not all(_may_be_reached(url, address) for address in addresses):
        raise ExchangeError(Failure.ADDRESS_REFUSED)
    return addresses[:MAX_ADDRESSES]


def _leads_there(url: ParsedUrl, connected: socket.socket) -> bool:
    """Return True if the connected peer is an allowed address, however we got there."""
    try:
        return _may_be_reached(url, connected.getpeername()[0])
    except OSError:  # already disconnected, as the first read will show
        return True


def _may_be_reached(url: ParsedUrl, address: str) -> bool:
    return url.is_allowed_host or is_allowed_address(address)


async def look_up(host: str, port: int, resolve: Resolve) -> list[str]:
    """Return the addresses of a host, which may be one.

    Raises:
        ExchangeError: it has none.
    """
    if _is_literal(host):
        return [host]
    # getaddrinfo takes no deadline: it gets its own thread, because a whole pool could hang at once.
    found: Future[list[str]] = Future()

    def look_up() -> None:
        if not found.set_running_or_notify_cancel():
            return
        try:
            found.set_result(list(resolve(host, port)))
        except (OSError, UnicodeError) as error:  # UnicodeError: a label of more than 63 characters
            found.set_exception(error)

    threading.Thread(target=look_up, name="resolve", daemon=True).start()
    try:
        addresses = await asyncio.wrap_future(found)
    except (OSError, UnicodeError) as error:
        raise ExchangeError(Failure.NAME_NOT_RESOLVED) from error
    if not addresses:
        raise ExchangeError(Failure.NAME_NOT_RESOLVED)
    return addresses


def _is_literal(host: str) -> bool:
    """Return True if the host is an address, which needs no lookup."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
