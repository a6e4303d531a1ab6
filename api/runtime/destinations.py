"""Checks where a webhook's host leads when it is registered; each delivery checks again, and that decides.

Remembers what was registered a moment ago, too: to ask the database again takes as long as to store the job.
"""

import asyncio
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable
from contextlib import suppress
from typing import Final
from uuid import UUID

from api.runtime.lookups import LookupThreads
from jobs.webhooks import WebhookUrlError, check_url
from jobs.webhooks.addresses import is_allowed_address
from jobs.webhooks.destinations import server_id

_TIMEOUT_SECONDS: Final = 2.0
_KEPT_SECONDS: Final = 60.0
_MAX_KEPT: Final = 1024
_MAX_NAMED: Final = 10_000

Resolve = Callable[[str], Collection[str]]


def resolve_host(host: str) -> Collection[str]:
    """Resolve a host with the system's resolver.

    Raises:
        OSError: the host has no address.
    """
    found = socket.getaddrinfo(host, 443, type=socket.SOCK_STREAM)
    return {str(address[0]) for *_, address in found}


class Destinations:
    """Refuses hosts that resolve to private addresses; caches that, and what is registered, for a minute."""

    def __init__(self, resolve: Resolve = resolve_host, *, timeout_seconds: float = _TIMEOUT_SECONDS) -> None:
        """Args: resolve: may block; timeout_seconds: how long a caller waits for it."""
        self._lookups = LookupThreads(resolve)
        self._timeout_seconds = timeout_seconds
        self._private: OrderedDict[str, tuple[bool, float]] = OrderedDict()
        self._asking: dict[str, asyncio.Future[Collection[str]]] = {}
        self._named: OrderedDict[UUID, float] = OrderedDict()

    def unnamed(self, urls: Collection[str], *, tenant_id: UUID) -> list[str]:
        """Return those of these URLs whose servers the tenant has not named in the last minute."""
        now = time.monotonic()
        return [url for url in urls if self._named.get(server_id(tenant_id, url), 0.0) <= now]

    def note_named(self, urls: Collection[str], *, tenant_id: UUID) -> None:
        """Note that the database knows these URLs' servers as the tenant's destinations."""
        for url in urls:
            server = server_id(tenant_id, url)
            self._named[server] = time.monotonic() + _KEPT_SECONDS
            self._named.move_to_end(server)
        while len(self._named) > _MAX_NAMED:
            self._named.popitem(last=False)

    async def check(
        self, url: str | None, *, allowed_hosts: Collection[str], param: str, tenant_id: Hashable
    ) -> None:
        """Check that the URL's host may be registered.

        A host without an address now may have one later. A host that is not resolved in time, or finds no
        free thread, is accepted unchecked: each delivery resolves and checks it again.

        Args:
            url: follows the rules of `webhooks.check_destination`; None: there is nothing to check.
            allowed_hosts: hosts that may be private.
            param: the field to name in the error.
            tenant_id: the tenant that registers it.

        Raises:
            WebhookUrlError: the URL breaks a rule, or the host has an address that is not public.
        """
        if url is None:
            return
        parsed = check_url(url, allowed_hosts=allowed_hosts)
        if not parsed.is_allowed_host and await self._is_private(parsed.host, tenant_id):
            raise WebhookUrlError("The URL's host resolves to a private address.", param=param)

    async def _is_private(self, host: str, tenant_id: Hashable) -> bool:
        known = self._private.get(host)
        if known is not None and known[1] > time.monotonic():
            return known[0]
        with suppress(OSError, UnicodeError, TimeoutError):
            async with asyncio.timeout(self._timeout_seconds):
                if host not in self._asking:
                    looking = await self._lookups.start(host, owner=tenant_id)
                    self._asking[host] = looking
                    looking.add_done_callback(lambda found: self._note(host, found))
                await asyncio.shield(self._asking[host])
        known = self._private.get(host)
        return known is not None and known[0]

    def _note(self, host: str, found: "asyncio.Future[Collection[str]]") -> None:
        """Cache what a look-up found, even if no caller waits for it any longer."""
        self._asking.pop(host, None)
        if found.cancelled():
            return
        addresses = () if found.exception() else found.result()
        is_private = not all(is_allowed_address(address) for address in addresses)
        self._private[host] = is_private, time.monotonic() + _KEPT_SECONDS
        self._private.move_to_end(host)
        while len(self._private) > _MAX_KEPT:
            self._private.popitem(last=False)
