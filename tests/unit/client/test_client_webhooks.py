"""Deliveries are verified as any library of Standard Webhooks does."""

import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
import standardwebhooks

from longbatch.client import Client
from longbatch.errors import InvalidSecretError, SecretMissingError, SignatureError
from longbatch.webhooks import SECRET, verify

KEY = "whsec_" + base64.b64encode(b"k" * 32).decode()
OTHER = "whsec_" + base64.b64encode(b"o" * 32).decode()
BODY = json.dumps(
    {
        "id": "evt_1",
        "object": "event",
        "created_at": 1790000000,
        "type": "job.completed",
        "data": {"id": "job_1"},
    }
)


def delivery(*, secret: str = KEY, age: timedelta = timedelta(0)) -> dict[str, str]:
    at = datetime.now(UTC) - age
    signature = standardwebhooks.Webhook(secret).sign("evt_1", at, BODY)
    return {
        "Webhook-Id": "evt_1",
        "Webhook-Timestamp": str(int(at.timestamp())),
        "Webhook-Signature": f"v1,{base64.b64encode(b'x').decode()} {signature}",
    }


@pytest.mark.parametrize("body", [BODY, BODY.encode()])
def test_a_genuine_delivery_is_its_event(body: str | bytes) -> None:
    event = verify(delivery(), body, secret=KEY)
    assert (event.id, event.type, event.data) == ("evt_1", "job.completed", {"id": "job_1"})
    assert event.created_at == datetime.fromtimestamp(1790000000, UTC)


@pytest.mark.parametrize(
    ("headers", "body", "secret"),
    [
        (lambda: delivery(secret=OTHER), BODY, KEY),
        (delivery, BODY + " ", KEY),
        (lambda: delivery(age=timedelta(minutes=6)), BODY, KEY),
        (lambda: delivery(age=-timedelta(minutes=6)), BODY, KEY),
        (dict, BODY, KEY),
        (lambda: delivery() | {"Webhook-Timestamp": "yesterday"}, BODY, KEY),
        (lambda: delivery() | {"Webhook-Signature": "v1,\udcff"}, BODY, KEY),
    ],
    ids=["other secret", "other body", "old", "from the future", "no headers", "no time", "not text"],
)
def test_any_other_delivery_is_refused(headers: Callable[[], dict[str, str]], body: str, secret: str) -> None:
    with pytest.raises(SignatureError):
        verify(headers(), body, secret=secret)


@pytest.mark.parametrize(
    "secret", ["whsec_!", "whsec_", "whsec_ü", "whsec_" + base64.b64encode(b"k").decode()]
)
def test_a_secret_that_cannot_protect_is_no_forgery(secret: str) -> None:
    with pytest.raises(InvalidSecretError):
        verify(delivery(), BODY, secret=secret)


def test_a_line_feed_after_the_secret_is_no_part_of_it() -> None:
    assert verify(delivery(), BODY, secret=f"{KEY}\n").id == "evt_1"


def test_the_clients_secret_is_that_given_or_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SECRET, raising=False)
    with Client("http://127.0.0.1:1") as client, pytest.raises(SecretMissingError):
        client.webhooks.verify(delivery(), BODY)
    with Client("http://127.0.0.1:1", webhook_secret=KEY) as client:
        assert client.webhooks.verify(delivery(), BODY).id == "evt_1"
    monkeypatch.setenv(SECRET, KEY)
    with Client("http://127.0.0.1:1") as client:
        assert client.webhooks.verify(delivery(), BODY).id == "evt_1"
