"""What opens the secrets of webhooks: never anything that a caller can read."""

from hashlib import sha256

import httpx2
import pytest
from pydantic import SecretStr
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session, sessionmaker

from api_server import WEBHOOK_SECRET, error_of, serving
from cli.stack.servers.valkey import EmbeddedValkey
from jobs import diagnostics
from jobs.database import transaction
from jobs.models import DEFAULT_TENANT, WebhookEndpoint
from jobs.sealing.keys import new_key
from jobs.settings import DatabaseSettings, WebhookSettings
from jobs.webhooks.endpoints import EndpointSpec, create
from jobs.webhooks.vault import Vault, VaultError, VaultSealError
from webhook_support import Receiver, deliver_all, finish, tries
from worker.webhooks import delivery

Sessions = sessionmaker[Session]

# As releases before made it of the configured secret.
DERIVED = sha256(b"longbatch webhook secret" + WEBHOOK_SECRET.encode()).digest()
SIGNS_ALONE = WebhookSettings(
    secret=SecretStr(WEBHOOK_SECRET), allowed_hosts=("127.0.0.1",), deadline_seconds=3
)
SEALS = SIGNS_ALONE.model_copy(update={"encryption_key": SecretStr(new_key())})


def vault_of(settings: WebhookSettings) -> Vault:
    made = Vault.of(settings)
    assert made is not None
    return made


def test_the_secret_that_callers_read_opens_nothing_that_is_sealed_now() -> None:
    with pytest.raises(VaultSealError, match="ENCRYPTION_KEY"):
        vault_of(SIGNS_ALONE).seal("whsec_mine")
    sealed = vault_of(SEALS).seal("whsec_mine")
    for known in (Vault([DERIVED]), vault_of(SIGNS_ALONE)):
        with pytest.raises(VaultError):
            known.open(sealed)


def test_without_a_key_secrets_are_refused_and_the_configured_one_still_signs(
    engine: Engine,  # noqa: ARG001  # the database is migrated
    database_settings: DatabaseSettings,
    valkey: EmbeddedValkey,
    sessions: Sessions,
    receiver: Receiver,
) -> None:
    with (
        serving(database_settings, valkey.url, LONGBATCH_WEBHOOKS__SECRET=WEBHOOK_SECRET) as process,
        process.client() as http,
    ):
        assert http.get("/v1/webhook_secret").json()["secret"] == WEBHOOK_SECRET
        told = {"webhook_url": "https://receiver.example/"}
        assert http.post("/v1/jobs", json={"input": "a", **told}).status_code == 202
        refused: list[httpx2.Response] = [
            http.post("/v1/webhook_endpoints", json={"url": "https://receiver.example/"}),
            http.post("/v1/webhook_secret/rotate"),
            http.post("/v1/jobs", json={"input": "a", "webhook_secret": WEBHOOK_SECRET, **told}),
        ]
        for answer in refused:
            assert (answer.status_code, error_of(answer)["code"]) == (400, "webhook_secrets_not_kept")
    finish(sessions, webhook_url=receiver.url())
    deliver_all(sessions, SIGNS_ALONE)
    assert [each.outcome for each in tries(sessions) if each.outcome == "delivered"] == ["delivered"]


def test_what_a_release_before_sealed_is_opened_and_sealed_anew(sessions: Sessions) -> None:
    with transaction(sessions) as session:
        asked = EndpointSpec(url="https://receiver.example/")
        _, secret = create(
            session, asked, tenant_id=DEFAULT_TENANT, vault=Vault([DERIVED]), secret=None, max_endpoints=5
        )
    for settings in (SIGNS_ALONE, SEALS):
        delivery.reseal_secrets(sessions, vault_of(SIGNS_ALONE))
        with sessions() as session:
            sealed = session.scalars(select(WebhookEndpoint.secret)).one()
        assert vault_of(settings).open(sealed) == secret
    delivery.reseal_secrets(sessions, vault_of(SEALS))
    with sessions() as session:
        sealed = session.scalars(select(WebhookEndpoint.secret)).one()
    assert vault_of(SEALS).open(sealed) == secret
    with pytest.raises(VaultError):
        Vault([DERIVED]).open(sealed)


def test_doctor_tells_the_operator_to_set_a_key() -> None:
    def findings(webhooks: WebhookSettings) -> list[str]:
        return [each.advice for each in diagnostics.of_webhooks(webhooks)]

    (advice,) = findings(SIGNS_ALONE)
    assert "LONGBATCH_WEBHOOKS__ENCRYPTION_KEY" in advice
    assert findings(SEALS) == []
