"""How deliveries are signed and when they are tried again."""

import base64
import random
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError

from jobs.webhooks import (
    DELIVERY_DELAYS,
    WebhookSecretError,
    check_secret,
    next_delivery_at,
    signature_headers,
)

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
OLD_SECRET = "whsec_" + base64.b64encode(bytes(range(1, 33))).decode()
BODY = '{"id":"job_1","output":"ü"}'.encode()
NOON = datetime(2026, 11, 21, 12, 0, 0, 900_000, tzinfo=UTC)


def test_a_receiver_with_the_secret_verifies_the_headers() -> None:
    headers = signature_headers(BODY, event_id="evt_1", secrets=[SECRET], now=datetime.now(UTC))
    assert Webhook(SECRET).verify(BODY, dict(headers))["id"] == "job_1"


def test_a_changed_body_is_noticed() -> None:
    headers = signature_headers(BODY, event_id="evt_1", secrets=[SECRET], now=datetime.now(UTC))
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(BODY + b" ", dict(headers))


def test_while_a_secret_is_replaced_receivers_of_both_verify() -> None:
    headers = signature_headers(BODY, event_id="evt_1", secrets=[SECRET, OLD_SECRET], now=datetime.now(UTC))
    for secret in (SECRET, OLD_SECRET):
        Webhook(secret).verify(BODY, dict(headers))


@given(offset=st.integers(-14, 14))
def test_the_signature_does_not_depend_on_the_time_zone_of_now(offset: int) -> None:
    elsewhere = NOON.astimezone(timezone(timedelta(hours=offset)))
    at = signature_headers(BODY, event_id="evt_1", secrets=[SECRET], now=elsewhere)
    assert at == signature_headers(BODY, event_id="evt_1", secrets=[SECRET], now=NOON)
    assert at["webhook-timestamp"] == "1795262400"


@pytest.mark.parametrize(
    "secret", ["", "whsec_", "whsec_short", "whsec_" + "A" * 200, "whsec_" + "é" * 32, "plain"]
)
def test_a_weak_or_malformed_secret_is_refused(secret: str) -> None:
    with pytest.raises(WebhookSecretError):
        check_secret(secret)


def test_a_good_secret_is_accepted() -> None:
    check_secret(SECRET)


def test_deliveries_follow_the_schedule_of_standard_webhooks() -> None:
    hours = [delay / timedelta(hours=1) for delay in DELIVERY_DELAYS]
    assert hours == pytest.approx([0, 5 / 3600, 5 / 60, 0.5, 2, 5, 10, 14, 20, 24])


@given(attempt=st.integers(0, 9), seed=st.integers())
def test_a_retry_comes_within_a_fifth_of_its_delay(attempt: int, seed: int) -> None:
    at = next_delivery_at(attempt, NOON, random.Random(seed))  # noqa: S311 jitter
    assert at is not None
    delay = DELIVERY_DELAYS[attempt]
    assert 0.8 * delay <= at - NOON <= 1.2 * delay + timedelta(microseconds=1)


def test_the_first_delivery_is_due_at_once_and_after_the_tenth_none_follows() -> None:
    rng = random.Random(0)  # noqa: S311 jitter
    assert next_delivery_at(0, NOON, rng) == NOON
    assert next_delivery_at(10, NOON, rng) is None
