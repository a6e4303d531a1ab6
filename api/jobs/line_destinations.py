"""Where the webhooks of bulk lines lead: each name is looked up once, and only so many of a request."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final
from urllib.parse import urlsplit

from jobs.webhooks import WebhookUrlError

# A request of 50,000 lines may name as many hosts; what is not looked up here is looked up by each delivery.
_MAX_NAMES: Final = 64


class LineDestinations:
    """The names that one bulk request looks up."""

    def __init__(self, check: Callable[[str], Awaitable[None]]) -> None:
        """Args: check: raises WebhookUrlError where a name leads to a private address."""
        self._check = check
        self._found: dict[str, WebhookUrlError | None] = {}

    async def check(self, urls: Mapping[int, str]) -> dict[int, WebhookUrlError]:
        """Look up the names that are new, beside each other, within the seconds that one of them may take.

        Args:
            urls: by line, which keep the rules.

        Returns: what is wrong, by line.
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
