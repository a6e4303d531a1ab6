"""A service whose console people sign in to by a provider on loopback."""

import json
from collections.abc import Iterator

import pytest
from sqlalchemy.orm import Session, sessionmaker

from api_server import ApiProcess, Serve
from browser_support import ANOTHER_SITE
from cli.stack.ports import free_port
from identity.provider import CLIENT_ID, CLIENT_SECRET, IdentityProvider, providing
from signing_in.people import RULES, People


@pytest.fixture(scope="module")
def _provider() -> Iterator[IdentityProvider]:
    with providing(ANOTHER_SITE) as made:
        yield made


@pytest.fixture(scope="module")
def oidc_server(
    serve: Serve, _provider: IdentityProvider, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApiProcess]:
    secret = tmp_path_factory.mktemp("oidc") / "secret"
    secret.write_text(f"{CLIENT_SECRET}\n")
    port = free_port()
    variables = {
        "LONGBATCH_API__PORT": str(port),
        "LONGBATCH_OIDC__ISSUER": _provider.url,
        "LONGBATCH_OIDC__CLIENT_ID": CLIENT_ID,
        "LONGBATCH_OIDC__CLIENT_SECRET_FILE": str(secret),
        "LONGBATCH_OIDC__REDIRECT_URI": f"http://127.0.0.1:{port}/console/oidc/callback",
        "LONGBATCH_OIDC__RULES": json.dumps(RULES),
    }
    with serve(**variables) as process:
        yield process


@pytest.fixture
def provider(_provider: IdentityProvider) -> IdentityProvider:
    """The provider, which behaves again."""
    _provider.behave()
    return _provider


@pytest.fixture
def people(
    oidc_server: ApiProcess,
    provider: IdentityProvider,
    sessions: sessionmaker[Session],
) -> People:
    """Browsers of people whom the provider knows."""
    return People(oidc_server, provider, sessions)
