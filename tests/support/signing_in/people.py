"""People who sign in to the console by a provider: their browsers, step by step."""

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

import httpx2
from sqlalchemy.orm import Session, sessionmaker

from api_server import ApiProcess
from console_pages.browser import Browser
from identity.provider import IdentityProvider
from support import PATIENCE

_NUMBERS = itertools.count()
START = "/console/oidc/start"
CALLBACK = "/console/oidc/callback"
GROUP = "https://acme.example/groups"
RULES: list[dict[str, object]] = [
    {
        "claim": "realm_access.roles",
        "value": "ops",
        "tenant": "default",
        "scopes": ["read", "submit", "operator"],
    },
    {"claim": GROUP, "value": "writers", "tenant": "default", "scopes": ["read", "submit"]},
    {"claim": "email", "value": "@acme.example", "tenant": "default"},
    {"claim": "email", "value": "lost@elsewhere.example", "tenant": "no-such-tenant"},
]
READER: dict[str, object] = {"email": "Ada@ACME.example", "email_verified": True}
WRITER: dict[str, object] = {GROUP: ["others", "writers"], "preferred_username": "wim"}
OPERATOR: dict[str, object] = {"realm_access": {"roles": ["ops"]}, "name": "Olga"}


@dataclass
class People:
    """Browsers that sign in, one by one."""

    server: ApiProcess
    provider: IdentityProvider
    sessions: sessionmaker[Session]

    @contextmanager
    def browser(self) -> Iterator[Browser]:
        """One that has not signed in, at an address of its own: failures count by address."""
        transport = httpx2.HTTPTransport(local_address=f"127.1.0.{next(_NUMBERS) % 250 + 1}")
        with httpx2.Client(base_url=self.server.url, timeout=PATIENCE, transport=transport) as client:
            yield Browser(client)

    @contextmanager
    def signed_in(self, claims: Mapping[str, object]) -> Iterator[Browser]:
        """One whom the provider describes so."""
        with self.browser() as browser:
            answer = self.sign_in(browser, claims)
            assert answer.status_code == 200, answer.text
            yield browser

    def sign_in(
        self, browser: Browser, claims: Mapping[str, object], *, next_: str = "/console/"
    ) -> httpx2.Response:
        """Go to the provider and back; the answer of the console to that."""
        self.provider.claims = dict(claims)
        return browser.client.get(self.back(self.begin(browser, next_=next_)))

    def begin(self, browser: Browser, *, next_: str = "/console/") -> str:
        """Where the console leads a browser that wants to sign in."""
        answer = browser.client.get(START, params={"next": next_})
        assert answer.status_code == 303, answer.text
        return answer.headers["location"]

    def back(self, address: str) -> str:
        """Where the provider leads the browser."""
        answer = httpx2.get(address, trust_env=False)
        assert answer.status_code == 302, answer.text
        return answer.headers["location"]


def query_of(address: str) -> dict[str, str]:
    return {name: value for name, (value,) in parse_qs(urlsplit(address).query).items()}
