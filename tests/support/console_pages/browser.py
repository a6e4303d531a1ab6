"""A browser of the console: signs in, sends forms as pages do, and reads pages."""

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from typing import Any
from uuid import UUID

import httpx2
import lxml.html
from lxml.html import HtmlElement
from sqlalchemy.orm import Session, sessionmaker

from api.console import routes
from api.console.headers import POLICY
from api_server import ApiProcess
from jobs import tenants
from jobs.models import DEFAULT_TENANT
from jobs.tenants import keys
from jobs.tenants.keys import NewKey, Scope
from support import API_KEY, PATIENCE

SAME_ORIGIN = {"Sec-Fetch-Site": "same-origin"}
# Markup in what callers send: a page that renders one of these as an element can be taken over.
PROBE = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'><b id=probe>"


class Browser:
    """A browser with its own cookies."""

    def __init__(self, client: httpx2.Client) -> None:
        self.client = client

    def sign_in(self, key: str = API_KEY, **fields: str) -> httpx2.Response:
        return self.client.post("/console/sign-in", data={"api_key": key} | fields, headers=SAME_ORIGIN)

    def page(self, address: str, *, status: int = 200) -> HtmlElement:
        """The page at this address, which keeps the rules of every page."""
        answer = self.client.get(address)
        assert answer.status_code == status, (answer.status_code, answer.text)
        return checked(answer)

    def post(self, address: str, **fields: str) -> httpx2.Response:
        """Send a form of the session."""
        (token,) = set(self.page("/console/").xpath("//input[@name='csrf']/@value"))
        return self.client.post(address, data={"csrf": token} | fields, headers=SAME_ORIGIN)


def checked(answer: httpx2.Response) -> HtmlElement:
    """The page in the answer: no inline script or style, no element of a probe, one heading, all headers."""
    assert answer.headers["content-security-policy"] == POLICY
    assert answer.headers["cache-control"] == "no-store"
    page = lxml.html.document_fromstring(answer.text)
    assert not page.xpath("//script[not(@src)] | //style | //*[@style] | //*[@id='probe'] | //*[@src='x']")
    handlers = [name for element in page.iter() for name in element.attrib if name.lower().startswith("on")]
    assert handlers == []
    assert not page.xpath("//*[starts-with(@href, 'javascript:')]")
    for linked in page.xpath("//script/@src | //link/@href"):
        assert linked.startswith("/console/assets/")
    assert len(page.xpath("//h1")) == 1
    assert len(page.xpath("//main")) == 1
    assert all(table.xpath("./caption") for table in page.xpath("//table"))
    for field in page.xpath("//input[not(@type='hidden')] | //select | //textarea"):
        assert page.xpath(f"//label[@for='{field.get('id')}']") or field.getparent().tag == "label"
    return page


def words(element: HtmlElement) -> str:
    """The text of an element, with single spaces."""
    return " ".join(element.text_content().split())


def events(browser: Browser, address: str, wanted: str, opened: Event) -> str:
    """The stream's text up to what is wanted in it; tells when it is open."""
    found = ""
    until = time.monotonic() + PATIENCE
    with browser.client.stream("GET", address, headers={"Accept": "text/event-stream"}) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert "content-security-policy" in answer.headers
        opened.set()
        for line in answer.iter_lines():
            found += line + "\n"
            if wanted in found:
                return found
            if time.monotonic() > until:  # heartbeats come every few seconds
                break
    raise AssertionError(found)


def is_over(browser: Browser, address: str, part: str | None) -> bool:
    """Whether the stream ends at once; where it is of a page, it first reloads its part, which is old."""
    answer = browser.client.get(address)
    return answer.status_code == 204 if part is None else f'hx-select="{part}"' in answer.text


@contextmanager
def browsing(server: ApiProcess, key: str | None = API_KEY) -> Iterator[Browser]:
    """A browser that signed in with this key, or with none."""
    with server.client(api_key=None) as client:
        browser = Browser(client)
        if key is not None:
            answer = browser.sign_in(key)
            assert answer.status_code == 303, answer.text
        yield browser


def new_key(
    sessions: sessionmaker[Session], *scopes: Scope, tenant_id: UUID = DEFAULT_TENANT, name: str = "of a test"
) -> NewKey:
    with sessions.begin() as session:
        return keys.create(session, tenant_id=tenant_id, name=name, scopes=scopes)


def new_tenant(sessions: sessionmaker[Session], name: str = "t") -> UUID:
    with sessions.begin() as session:
        return tenants.create(session, f"{name}-{secrets.token_hex(4)}").id


def every_route() -> Iterator[tuple[str, str]]:
    """Every method and path of the console."""
    each: Any
    for each in routes.router.routes:
        contexts = getattr(each, "effective_route_contexts", None)  # of an included router
        for route in contexts() if contexts else (each,):
            assert not route.include_in_schema
            yield from ((method, route.path) for method in route.methods)
