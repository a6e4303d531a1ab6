"""Where a webhook's name leads when it is registered; each delivery looks again, and that look decides."""

import asyncio
import socket
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from jobs.addresses import is_allowed_address
from jobs.webhooks import WebhookUrlError, check_url

_TIMEOUT_SECONDS: Final = 2.0
_KEPT_SECONDS: Final = 60.0
_MAX_KEPT: Final = 1024
_MAX_LOOKUPS: Final = 8

Resolve = Callable[[str], Awaitable[Collection[str]]]


async def resolve_host(host: str) -> Collection[str]:
    """The system's addresses of a host; OSError where there are none."""
    found = await asyncio.get_running_loop().getaddrinfo(host, 443, type=socket.SOCK_STREAM)
    return {str(address[0]) for *_, address in found}


class Destinations:
    """Refuses names that lead to private addresses, and remembers for a minute what it found."""

    def __init__(self, resolve: Resolve = resolve_host) -> None:
        self._resolve = resolve
        self._private: OrderedDict[str, tuple[bool, float]] = OrderedDict()
        # Names that nobody answers for hold a thread each: they must not take all of them.
        self._lookups = asyncio.Semaphore(_MAX_LOOKUPS)

    async def check(self, url: str | None, *, allowed_hosts: Collection[str], param: str) -> None:
        """Returns when the URL's name may be registered; one that has no address now may have one later.

        Args:
            url: that keeps the rules of `webhooks.check_destination`; None: there is nothing to check.
            allowed_hosts: hosts that may be private.
            param: the field to name.

        Raises:
            WebhookUrlError: it breaks a rule, or an address of the name is not public.
        """
        if url is None:
            return
        parsed = check_url(url, allowed_hosts=allowed_hosts)
        if not parsed.is_allowed_host and await self._is_private(parsed.host):
            raise WebhookUrlError("The URL's name leads to a private address.", param=param)

    async def _is_private(self, host: str) -> bool:
        known = self._private.get(host)
        if known is not None and known[1] > time.monotonic():
            return known[0]
        found = await self._look_up(host)
        self._private[host] = found, time.monotonic() + _KEPT_SECONDS
        self._private.move_to_end(host)
        while len(self._private) > _MAX_KEPT:
            self._private.popitem(last=False)
        return found

    async def _look_up(self, host: str) -> bool:
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS), self._lookups:
                addresses = await self._resolve(host)
        except (OSError, UnicodeError, TimeoutError):
            return False
        return not all(is_allowed_address(address) for address in addresses)
