"""Providers that are away or say wrong things, settings that do not fit, and consoles without key sign-in."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError
from sqlalchemy.orm import Session, sessionmaker

from api.console.oidc.pending import PendingSignIn
from api.console.oidc.provider import Provider, ProviderError
from api.console.session import COOKIE
from api_server import ApiProcess, Serve
from cli.stack.ports import free_port
from console_pages.browser import Browser, browsing, checked, new_key, words
from identity.provider import CLIENT_ID, CLIENT_SECRET, IdentityProvider, providing
from jobs.settings import OidcSettings
from jobs.tenants.keys import Scope
from signing_in.people import RULES, START, query_of
from support import API_KEY

ISSUER = "https://id.acme.example"
COMPLETE: dict[str, Any] = {
    "issuer": ISSUER,
    "client_id": CLIENT_ID,
    "client_secret": SecretStr(CLIENT_SECRET),
    "redirect_uri": "https://console.acme.example/console/oidc/callback",
    "rules": RULES,
}


@pytest.fixture(scope="module")
def without_keys(serve: Serve) -> Iterator[ApiProcess]:
    """A console that only its provider signs in to, which is away."""
    variables = {
        "LONGBATCH_OIDC__ISSUER": f"http://127.0.0.1:{free_port()}",
        "LONGBATCH_OIDC__CLIENT_ID": CLIENT_ID,
        "LONGBATCH_OIDC__CLIENT_SECRET": CLIENT_SECRET,
        "LONGBATCH_OIDC__REDIRECT_URI": COMPLETE["redirect_uri"],
        "LONGBATCH_OIDC__RULES": json.dumps(RULES),
        "LONGBATCH_OIDC__KEY_SIGN_IN": "false",
    }
    with serve(**variables) as process:
        yield process


def address(provider: IdentityProvider) -> str:
    """Where a console of this provider leads browsers."""
    settings = OidcSettings(**COMPLETE | {"issuer": provider.url})
    return asyncio.run(Provider(settings).address(PendingSignIn(next="/console/")))


def test_a_provider_that_is_away_is_a_clear_page(without_keys: ApiProcess) -> None:
    with without_keys.client(api_key=None) as client:
        answer = client.get(START)
        assert answer.status_code == 503
        assert "sign-in provider does not answer" in words(checked(answer))


def test_keys_sign_nobody_in_where_that_is_switched_off(without_keys: ApiProcess) -> None:
    with without_keys.client(api_key=None) as client:
        form = Browser(client).page("/console/sign-in")
        assert not form.xpath("//input[@name='api_key']")
        answer = Browser(client).sign_in(API_KEY)
        assert answer.status_code == 403
        assert "API keys do not sign in" in words(checked(answer))
    with without_keys.client() as client:
        assert client.post("/console/codes").status_code == 403
        assert client.get("/v1/jobs").status_code == 200


def test_sessions_of_keys_end_where_key_sign_in_is_switched_off(
    server: ApiProcess, without_keys: ApiProcess, sessions: sessionmaker[Session]
) -> None:
    made = new_key(sessions, Scope.READ)
    with browsing(server, made.secret) as visitor, without_keys.client(api_key=None) as client:
        visitor.page("/console/jobs")
        client.cookies.set(COOKIE, visitor.client.cookies[COOKIE], path="/console")
        assert client.get("/console/jobs").headers["location"].startswith("/console/sign-in")
        visitor.page("/console/jobs")  # where keys sign in it goes on


def test_without_a_provider_there_are_no_such_pages(server: ApiProcess) -> None:
    with server.client(api_key=None) as client:
        assert not Browser(client).page("/console/sign-in").xpath("//a[contains(@href, 'oidc')]")
        assert client.get(START).headers["location"].startswith("/console/sign-in")


def test_the_browser_is_led_with_state_nonce_and_challenge() -> None:
    with providing() as provider:
        sent = query_of(address(provider))
    assert sent["audience"] == "console", "the provider's own query is kept"
    assert {"state", "nonce", "code_challenge"} <= sent.keys()
    assert len({sent["state"], sent["nonce"], sent["code_challenge"]}) == 3


@pytest.mark.parametrize(
    "says",
    [
        {"issuer": "https://elsewhere.example"},
        {"issuer": None},
        {"authorization_endpoint": None},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"token_endpoint": "http://intranet.example/token"},
        {"token_endpoint": "https://user:password@id.acme.example/token"},
        {"jwks_uri": "file:///etc/passwd"},
        {"jwks_uri": 7},
    ],
    ids=str,
)
def test_a_provider_that_says_wrong_things_of_itself_is_not_believed(says: dict[str, object]) -> None:
    with providing() as provider:
        provider.says = says
        with pytest.raises(ProviderError):
            address(provider)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"issuer": "http://id.acme.example"}, "oidc.issuer"),
        ({"issuer": "https://id.acme.example/?a=b"}, "oidc.issuer"),
        ({"issuer": None, "key_sign_in": False}, "oidc.key_sign_in"),
        ({"client_id": ""}, "oidc.client_id"),
        ({"rules": ()}, "oidc.rules"),
        ({"client_secret": None}, "oidc.client_secret"),
        ({"client_secret_file": "secret"}, "oidc.client_secret"),
        ({"redirect_uri": "http://console.acme.example/console/oidc/callback"}, "oidc.redirect_uri"),
        ({"redirect_uri": "https://console.acme.example/elsewhere"}, "oidc.redirect_uri"),
        ({"scopes": "email"}, "scopes"),
        ({"session_hours": 13}, "session_hours"),
        ({"rules": [{"claim": "a", "value": "b", "tenant": "c", "scopes": ["submit"]}]}, "read"),
        ({"rules": [{"claim": "a", "value": "b", "tenant": "c", "scopes": ["read", "admin"]}]}, "scopes"),
    ],
    ids=str,
)
def test_settings_that_do_not_fit_are_refused_at_start(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        OidcSettings(**COMPLETE | changes)
    assert OidcSettings(**COMPLETE).is_on


def test_a_secret_that_cannot_be_read_is_refused_at_start() -> None:
    settings = OidcSettings(**COMPLETE | {"client_secret": None, "client_secret_file": "/no/such/file"})
    with pytest.raises(ValueError, match="client_secret_file cannot be read"):
        Provider(settings)
