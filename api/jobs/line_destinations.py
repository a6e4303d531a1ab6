"""Checks the webhook hosts of bulk lines: each name once, and a bounded number per request."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final
from urllib.parse import urlsplit

from jobs.webhooks import WebhookUrlError

# A request of 50,000 lines may name as many hosts. Names beyond this number are checked at delivery, which
# always looks its host up itself.
_MAX_NAMES: Final = 64


class LineDestinations:
    """The host names that one bulk request looks up."""

    def __init__(self, check: Callable[[str], Awaitable[None]]) -> None:
        """Args: check: raises WebhookUrlError if a name resolves to a private address."""
        self._check = check
        self._found: dict[str, WebhookUrlError | None] = {}

    async def check(self, urls: Mapping[int, str]) -> dict[int, WebhookUrlError]:
        """Look up the new names concurrently, within the time allowed for one.

        Args:
            urls: by line; each follows the rules for webhook URLs.

        Returns:
            The errors, by line.
        """
        hosts = {number: urlsplit(url).hostname or "" for number, url in urls.items()}
        new = {host: urls[number] for number, host in hosts.items() if host not in self._found}
        asked = list(new)[: _MAX_NAMES - len(self._found)]
        answers = await asyncio.gather(*(self._look_up(new[host]) for host in asked))
        self._found |= dict(zip(asked, answers, strict=True))
        return {number: error for number, host in hosts.items() if (error := self._found.get(host))}

    async def _look_up(self, url: str) -> WebhookUrlError | None:
        try:
            await self._check(url)
        except WebhookUrlError as error:
            return error
        return None
