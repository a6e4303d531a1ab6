"""Connections to receivers through the operator's HTTP proxy, made by CONNECT (RFC 9110, 9.3.6)."""

import asyncio
import base64
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

import h11

from jobs.settings import WebhookSettings
from jobs.webhooks import ParsedUrl
from jobs.webhooks.rules import is_private_host
from worker.webhooks.connect import (
    ExchangeError,
    Failure,
    Resolve,
    connected_to,
    look_up,
    vetted_addresses,
)

# The proxy's whole answer, interim ones included; it has no body.
MAX_ANSWER_BYTES: Final = 16 * 1024


@dataclass(frozen=True, slots=True)
class Proxy:
    """The proxy that all webhooks go through.

    Attributes:
        host: a name or an address; operators may name a private one.
        authorization: the header's value; None: it wants none.
        resolves: it gets receivers' names. Otherwise it gets the addresses that we have checked.
    """

    host: str
    port: int
    authorization: str | None = field(default=None, repr=False)
    resolves: bool = False


def proxy_of(settings: WebhookSettings) -> Proxy | None:
    """Return the proxy that is set; None: webhooks go to their receivers directly."""
    if settings.proxy_url is None:
        return None
    parts = urlsplit(settings.proxy_url)
    authorization = None
    if settings.proxy_credentials is not None:
        given = settings.proxy_credentials.get_secret_value().encode()
        authorization = f"Basic {base64.b64encode(given).decode()}"
    return Proxy(parts.hostname or "", parts.port or 0, authorization, settings.proxy_resolves)


async def targets(url: ParsedUrl, proxy: Proxy, resolve: Resolve) -> Sequence[str]:
    """Return the hosts to ask the proxy for, in order: checked addresses, or the name if the proxy resolves.

    Raises:
        ExchangeError: the name has no address, or leads to one that is refused.
    """
    if not proxy.resolves:
        return await vetted_addresses(url, resolve)
    if not url.is_allowed_host and is_private_host(url.host):
        raise ExchangeError(Failure.ADDRESS_REFUSED)
    return [url.host]


async def tunnel(
    hosts: Sequence[str], port: int, proxy: Proxy, resolve: Resolve, *, until: float
) -> tuple[socket.socket, bytes]:
    """Have the proxy connect to the first of these hosts that it reaches.

    The caller must enforce the deadline.

    Args:
        hosts: of one receiver, from `targets`.
        port: of the receiver.
        proxy: the proxy.
        resolve: maps the proxy's name to addresses.
        until: the caller's deadline, by the loop's clock; divided among the hosts.

    Returns:
        The socket, and what the receiver has sent already.

    Raises:
        ExchangeError: the proxy cannot be reached, refuses, or speaks no HTTP.
    """
    loop = asyncio.get_running_loop()
    last = Failure.PROXY_REFUSED
    for number, host in enumerate(hosts):
        num_left = len(hosts) - number
        share = (until - loop.time()) / num_left if num_left > 1 else None
        try:
            async with asyncio.timeout(share):
                connected = await _connect(proxy, resolve)
                try:
                    return connected, await _ask(connected, _authority(host, port), proxy)
                except BaseException:
                    connected.close()
                    raise
        except TimeoutError:
            last = Failure.PROXY_TIMED_OUT
        except ExchangeError as error:
            if error.failure is not Failure.PROXY_REFUSED:
                raise
            last = error.failure
    raise ExchangeError(last)


async def _connect(proxy: Proxy, resolve: Resolve) -> socket.socket:
    try:
        addresses = await look_up(proxy.host, proxy.port, resolve)
    except ExchangeError as error:
        raise ExchangeError(Failure.PROXY_UNAVAILABLE) from error
    for address in addresses:
        if (connected := await connected_to(address, proxy.port, within=None)) is not None:
            return connected
    raise ExchangeError(Failure.PROXY_UNAVAILABLE)


async def _ask(connected: socket.socket, authority: str, proxy: Proxy) -> bytes:
    """Ask for a connection to the authority; return what follows the proxy's answer."""
    loop = asyncio.get_running_loop()
    http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_ANSWER_BYTES)
    headers = [("Host", authority)]
    if proxy.authorization is not None:
        headers.append(("Proxy-Authorization", proxy.authorization))
    request = h11.Request(method="CONNECT", target=authority, headers=headers)
    num_left = MAX_ANSWER_BYTES
    try:
        await loop.sock_sendall(connected, http.send(request) or b"")
        http.send(h11.EndOfMessage())
        while num_left > 0:
            received = await loop.sock_recv(connected, num_left)
            num_left -= len(received)
            http.receive_data(received)
            if (status := _status(http)) is not None:
                _check(status)
                return http.trailing_data[0]
    except (h11.RemoteProtocolError, OSError) as error:
        if isinstance(error, TimeoutError):
            raise
        raise ExchangeError(Failure.PROXY_PROTOCOL_ERROR) from error
    raise ExchangeError(Failure.PROXY_PROTOCOL_ERROR)


def _status(http: h11.Connection) -> int | None:
    """Return the final status; None: it has not arrived whole.

    Raises:
        ExchangeError: the proxy closed before it.
    """
    while (event := http.next_event()) is not h11.NEED_DATA:
        if isinstance(event, h11.Response):
            return event.status_code
        if not isinstance(event, h11.InformationalResponse):
            raise ExchangeError(Failure.PROXY_PROTOCOL_ERROR)
    return None


def _check(status: int) -> None:
    if status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
        raise ExchangeError(Failure.PROXY_AUTH_FAILED)
    if not 200 <= status < 300:
        raise ExchangeError(Failure.PROXY_REFUSED)


def _authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
