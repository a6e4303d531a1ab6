"""The console's pages as somebody finds them: from link to link and filter to filter, each kind once."""

import re
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx2
import lxml.html
from lxml.html import HtmlElement

from api.console import routes
from api.console.page import HOME

_SAME_ORIGIN: Final = {"Sec-Fetch-Site": "same-origin"}
# Streams, assets and signing in are no pages; and the last route answers whatever is none.
_NO_PAGES: Final = re.compile(r"/live$|/assets/|/sign-in$|/codes$|\{path:path\}|^/console$")
_MOST_VARIANTS: Final = 24  # of one kind of page


@dataclass(slots=True)
class Visited:
    """A page that was opened.

    Attributes:
        kind: the path of its route.
        address: with which it was opened.
        stream: the address of its live updates; None: it has none.
    """

    kind: str
    address: str
    status: int
    stream: str | None


@dataclass(slots=True)
class Visitor:
    """Somebody who opens every kind of page that they find.

    Attributes:
        chosen: values of fields that forms offer as a choice, by the field's name.
    """

    client: httpx2.AsyncClient
    chosen: set[tuple[str, str]] = field(default_factory=set)

    async def sign_in(self, key: str) -> None:
        """Start a session."""
        answer = await self.client.post("/console/sign-in", data={"api_key": key}, headers=_SAME_ORIGIN)
        if answer.status_code != httpx2.codes.SEE_OTHER:
            raise RuntimeError(f"signing in: {answer.status_code} {answer.text}")

    async def open(self, address: str) -> tuple[Visited | None, Sequence[str]]:
        """Open a page; return it, or None where it leads to another, and the addresses on it."""
        answer = await self.client.get(address)
        if answer.is_redirect:
            return None, [answer.headers["location"]]
        kind = kind_of(address) or address
        if not answer.headers.get("content-type", "").startswith("text/html"):
            return Visited(kind, address, answer.status_code, None), []
        page = lxml.html.document_fromstring(answer.text)
        stream = next(iter(page.xpath("//@*[name()='hx-sse:connect']")), None)
        return Visited(kind, address, answer.status_code, stream), list(self._addresses(page))

    def _addresses(self, page: HtmlElement) -> Iterator[str]:
        yield from (str(each) for each in page.xpath("//a/@href"))
        for form in page.xpath("//form[@method='get']"):
            for choice in form.xpath(".//select[@name]"):
                for option in choice.xpath("./option"):
                    value = option.get("value", option.text or "")
                    self.chosen.add((choice.get("name"), value))
                    if value:
                        yield f"{form.get('action')}?{urlencode({choice.get('name'): value})}"

    def shape(self, address: str) -> tuple[str, ...]:
        """Name what addresses of one sort share: kind, names in the query, values that a form offers."""
        pairs = parse_qsl(urlsplit(address).query)
        return (
            kind_of(address) or "",
            *sorted(f"{name}={value if (name, value) in self.chosen else '*'}" for name, value in pairs),
        )

    async def visit_all(self) -> AsyncIterator[Visited]:
        """Yield each kind of page once for each filter, as it is opened."""
        waiting, seen, variants = deque([HOME]), {self.shape(HOME)}, dict[str, int]()
        while waiting:
            visited, found = await self.open(waiting.popleft())
            for each in found:
                address = each.partition("#")[0]
                kind, shape = kind_of(address), self.shape(address)
                if kind is None or shape in seen or variants.get(kind, 0) >= _MOST_VARIANTS:
                    continue
                seen.add(shape)
                variants[kind] = variants.get(kind, 0) + 1
                waiting.append(address)
            if visited is not None:
                yield visited


def kinds() -> dict[str, re.Pattern[str]]:
    """Find the paths of all pages, with what matches their addresses."""
    found = {}
    route: Any
    for route in routes.router.routes:
        contexts = getattr(route, "effective_route_contexts", None)  # of an included router
        for each in contexts() if contexts else (route,):
            if "GET" in each.methods and not _NO_PAGES.search(each.path):
                found[each.path] = re.compile(re.sub(r"\{[^}]*\}", "[^/]+", each.path))
    return found


_KINDS: Final = kinds()


def kind_of(address: str) -> str | None:
    """Return the path of the route that answers; None: no page does. Fixed paths come first."""
    path = urlsplit(address).path
    if path in _KINDS:
        return path
    return next((kind for kind, pattern in _KINDS.items() if pattern.fullmatch(path)), None)
