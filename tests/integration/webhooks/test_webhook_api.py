"""Endpoints, secrets, the delivery log and replays over HTTP, with a real receiver at the other end."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest
from pydantic import SecretStr
from sqlalchemy import select, update
from sqlalchemy.orm import Session, sessionmaker
from standardwebhooks import Webhook, WebhookVerificationError

from api_server import WEBHOOK_SECRET, ApiProcess, Serve, error_of
from jobs import ids, lifecycle
from jobs.database import transaction
from jobs.errors import ConflictError, DestinationLimitError
from jobs.models import (
    DEFAULT_TENANT,
    WebhookDestination,
    WebhookDispatch,
    WebhookEndpoint,
    WebhookEvent,
    WebhookSecret,
)
from jobs.sealing.keys import new_key
from jobs.states import JobState
from jobs.webhooks import destinations, endpoints
from jobs.webhooks.endpoints import EndpointSpec
from jobs.webhooks.secrets import new_secret
from jobs.webhooks.vault import Vault, VaultError
from support import submit_one
from webhook_support import (
    WEBHOOKS,
    Receiver,
    deliver_all,
    dispatch_states,
    dispatches,
    finish,
    make_due,
    status,
    vault,
)
from worker.webhooks import delivery

Sessions = sessionmaker[Session]


@pytest.fixture(scope="module")
def server(serve: Serve) -> Iterator[ApiProcess]:
    """An API that allows webhooks to this machine and seals with the tests' key."""
    assert WEBHOOKS.encryption_key is not None
    with serve(
        LONGBATCH_WEBHOOKS__SECRET=WEBHOOK_SECRET,
        LONGBATCH_WEBHOOKS__ENCRYPTION_KEY=WEBHOOKS.encryption_key.get_secret_value(),
        LONGBATCH_WEBHOOKS__ALLOWED_HOSTS='["127.0.0.1"]',
        LONGBATCH_WEBHOOKS__MAX_ENDPOINTS="5",
        LONGBATCH_WEBHOOKS__MAX_DESTINATIONS="8",
    ) as process:
        yield process


def created(http: httpx2.Client, url: str, **fields: object) -> dict[str, Any]:
    answer = http.post("/v1/webhook_endpoints", json={"url": url, **fields})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def path_of(endpoint: dict[str, Any], verb: str = "") -> str:
    return f"/v1/webhook_endpoints/{endpoint['id']}{verb}"


def deliveries(http: httpx2.Client, **query: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = http.get("/v1/webhook_deliveries", params=query).json()["data"]
    return found


def test_an_endpoint_is_created_seen_changed_and_deleted(http: httpx2.Client) -> None:
    made = created(http, "https://example.com/a", events=["job.failed", "job.failed"], description="mine")
    secret = made.pop("secret")
    assert re.fullmatch(r"whsec_[A-Za-z0-9+/]{43}=", secret)
    assert made["events"] == ["job.failed"]
    assert http.get(path_of(made)).json() == made
    changed = http.patch(path_of(made), json={"enabled": False, "url": "https://example.com/b"}).json()
    assert (changed["enabled"], changed["disabled_reason"], changed["url"]) == (
        False,
        "owner",
        "https://example.com/b",
    )
    assert http.patch(path_of(made), json={"enabled": True}).json()["enabled"] is True
    other = created(http, "https://example.com/c")
    listed = http.get("/v1/webhook_endpoints", params={"limit": 1}).json()
    assert ([each["id"] for each in listed["data"]], listed["has_more"]) == ([other["id"]], True)
    rest = http.get("/v1/webhook_endpoints", params={"after": other["id"]}).json()
    assert [each["id"] for each in rest["data"]] == [made["id"]]
    assert "whsec_" not in str(listed) + str(rest)
    assert http.delete(path_of(made)).json()["deleted"] is True
    assert http.get(path_of(made)).status_code == 404
    assert http.delete(path_of(made)).status_code == 404


@pytest.mark.parametrize(
    ("sent", "param"),
    [
        ({}, "url"),
        ({"url": "http://example.com/"}, "url"),
        ({"url": "https://10.0.0.1/"}, "url"),
        ({"url": "https://metadata.google.internal/"}, "url"),
        ({"url": "https://2130706433/"}, "url"),
        ({"url": "https://example.com:22/"}, "url"),
        ({"url": "https://u:p@example.com/"}, "url"),
        ({"url": "https://example.com/", "events": []}, "events"),
        ({"url": "https://example.com/", "events": ["job.danced"]}, "events.0"),
        ({"url": "https://example.com/", "secret": "whsec_short"}, "secret"),
        ({"url": "https://example.com/", "secrets": "x"}, "secrets"),
    ],
)
def test_a_wrong_endpoint_is_refused(http: httpx2.Client, sent: dict[str, object], param: str) -> None:
    answer = http.post("/v1/webhook_endpoints", json=sent)
    assert (answer.status_code, error_of(answer)["param"]) == (400, param)


def test_a_tenant_has_a_bounded_number_of_endpoints(http: httpx2.Client) -> None:
    for number in range(5):
        created(http, f"https://example.com/{number}")
    answer = http.post("/v1/webhook_endpoints", json={"url": "https://example.com/6"})
    assert answer.status_code == 409
    assert answer.headers["x-should-retry"] == "false"


def test_a_test_event_arrives_and_stands_in_the_log(
    http: httpx2.Client, sessions: Sessions, receiver: Receiver
) -> None:
    endpoint = created(http, receiver.url(), events=["job.failed"])
    answer = http.post(path_of(endpoint, "/test"))
    assert answer.status_code == 202
    deliver_all(sessions)
    (seen,) = receiver.seen
    told = Webhook(endpoint["secret"]).verify(seen.body, seen.headers)
    assert (told["id"], told["type"]) == (answer.json()["id"], "webhook_endpoint.test")
    (logged,) = deliveries(http, endpoint_id=endpoint["id"])
    assert logged["latency_ms"] >= 0
    assert {name: logged[name] for name in ("event_id", "event_type", "attempt", "outcome", "status")} == {
        "event_id": told["id"],
        "event_type": "webhook_endpoint.test",
        "attempt": 1,
        "outcome": "delivered",
        "status": 204,
    }
    assert logged["response_bytes"] > 0
    assert deliveries(http, outcome="failed") == []
    assert deliveries(http, event_id=told["id"]) == [logged]


def test_while_a_secret_is_replaced_both_verify_and_then_the_new_one_alone(
    http: httpx2.Client, sessions: Sessions, receiver: Receiver
) -> None:
    endpoint = created(http, receiver.url())
    old = endpoint["secret"]
    rotated = http.post(path_of(endpoint, "/rotate"), params={"overlap_seconds": 3600}).json()
    new = rotated["secret"]
    ends = datetime.fromisoformat(rotated["old_secret_expires_at"])
    assert timedelta(minutes=59) < ends - datetime.now(UTC) < timedelta(minutes=61)
    http.post(path_of(endpoint, "/test"))
    deliver_all(sessions)
    (both,) = receiver.seen
    assert len(both.headers["webhook-signature"].split(" ")) == 2
    for secret in (old, new):
        Webhook(secret).verify(both.body, both.headers)
    with transaction(sessions) as session:
        session.execute(update(WebhookEndpoint).values(old_secret_expires_at=datetime.now(UTC)))
    http.post(path_of(endpoint, "/test"))
    deliver_all(sessions)
    last = receiver.seen[-1]
    Webhook(new).verify(last.body, last.headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(old).verify(last.body, last.headers)


def test_secrets_are_sealed_in_the_database(http: httpx2.Client, sessions: Sessions) -> None:
    endpoint = created(http, "https://example.com/")
    http.post("/v1/webhook_secret/rotate")
    with sessions() as session:
        for sealed in (
            session.scalars(select(WebhookEndpoint.secret)).one(),
            session.scalars(select(WebhookSecret.secret)).one(),
        ):
            assert b"whsec_" not in sealed
            assert vault().open(sealed).startswith("whsec_")
        row = session.scalars(select(WebhookEndpoint.secret)).one()
    assert vault().open(row) == endpoint["secret"]
    other = Vault.of(WEBHOOKS.model_copy(update={"encryption_key": None}))
    assert other is not None
    with pytest.raises(VaultError):
        other.open(row)


def test_keys_are_replaced_by_putting_the_new_one_in_front() -> None:
    def vault_of(*keys: str) -> Vault:
        given = SecretStr(",".join(keys))
        made = Vault.of(WEBHOOKS.model_copy(update={"encryption_key": given}))
        assert made is not None
        return made

    old, new = new_key(), new_key()
    sealed = vault_of(old).seal("whsec_x")
    assert vault_of(new, old).open(sealed) == "whsec_x"
    assert vault_of(new).open(vault_of(new, old).seal("whsec_y")) == "whsec_y"
    with pytest.raises(VaultError):
        vault_of(new).open(sealed)
    with pytest.raises(VaultError):
        vault_of(old).open(sealed[:-1] + bytes([sealed[-1] ^ 1]))


def test_the_default_secret_is_the_configured_one_until_it_is_rotated(
    http: httpx2.Client, sessions: Sessions, receiver: Receiver
) -> None:
    assert http.get("/v1/webhook_secret").json() == {
        "object": "webhook_secret",
        "secret": WEBHOOK_SECRET,
        "old_secret_expires_at": None,
    }
    new = http.post("/v1/webhook_secret/rotate").json()["secret"]
    assert http.get("/v1/webhook_secret").json()["secret"] == new != WEBHOOK_SECRET
    finish(sessions, webhook_url=receiver.url())
    deliver_all(sessions)
    for secret in (WEBHOOK_SECRET, new):
        Webhook(secret).verify(receiver.seen[0].body, receiver.seen[0].headers)


def test_a_job_s_own_secret_signs_what_goes_to_its_url(
    http: httpx2.Client, sessions: Sessions, receiver: Receiver
) -> None:
    own = new_secret()
    sent = {"input": "a", "webhook_url": receiver.url(), "webhook_secret": own}
    job_id = http.post("/v1/jobs", json=sent).json()["id"]
    http.post(f"/v1/jobs/{job_id}/cancel")
    deliver_all(sessions)
    (seen,) = receiver.seen
    assert Webhook(own).verify(seen.body, seen.headers)["type"] == "job.cancelled"
    with pytest.raises(WebhookVerificationError):
        Webhook(WEBHOOK_SECRET).verify(seen.body, seen.headers)


@pytest.mark.parametrize(
    ("sent", "param"),
    [
        ({"webhook_secret": new_secret()}, "webhook_secret"),
        ({"webhook_url": "https://example.com/", "webhook_secret": "plain"}, "webhook_secret"),
        ({"webhook_url": "https://localhost/"}, "webhook_url"),
    ],
)
def test_a_wrong_webhook_of_a_job_or_batch_is_refused(
    http: httpx2.Client, sent: dict[str, str], param: str
) -> None:
    batch = {"input_file_id": "file-1", "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    for path, body in (("/v1/jobs", {"input": "a"}), ("/v1/batches", batch)):
        answer = http.post(path, json=body | sent)
        assert (answer.status_code, error_of(answer)["param"]) == (400, param)
        assert sent.get("webhook_secret", "whsec_nothing") not in answer.text


def test_a_tenant_s_webhooks_go_to_a_bounded_number_of_servers(
    http: httpx2.Client, sessions: Sessions
) -> None:
    urls = [f"http://127.0.0.1:{port}/" for port in range(9000, 9010)]
    for url in urls[:7]:
        assert http.post("/v1/jobs", json={"input": "a", "webhook_url": url}).status_code == 202
    lines = "\n".join(json.dumps({"input": "a", "webhook_url": url}) for url in urls[6:])
    refused = [
        http.post("/v1/jobs/bulk", content=lines),
        http.post("/v1/jobs/bulk", content=lines),
    ]
    assert {answer.status_code for answer in refused} == {429}, "a part is accepted whole or not at all"
    error = error_of(refused[0])
    assert (error["code"], error["type"]) == ("destination_limit_exceeded", "destinations")
    assert "7 destinations and this request adds 3. Limit: 8" in str(error["message"])
    for url in (urls[0] + "elsewhere", urls[7]):
        assert http.post("/v1/jobs", json={"input": "a", "webhook_url": url}).status_code == 202
    batch = {"input_file_id": "file-1", "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    answer = http.post(
        "/v1/batches", json=batch | {"input_file_id": "file-" + "0" * 32, "webhook_url": urls[9]}
    )
    assert answer.status_code == 429, answer.text
    with transaction(sessions) as session:
        session.execute(
            update(WebhookDestination).values(named_at=WebhookDestination.named_at - timedelta(hours=2))
        )
    delivery.sweep(sessions)
    assert http.post("/v1/jobs", json={"input": "a", "webhook_url": urls[9]}).status_code == 202


def test_requests_at_once_name_no_more_servers_than_the_limit(sessions: Sessions) -> None:
    def name(number: int) -> bool:
        url = f"https://host-{number}.example/"
        try:
            with transaction(sessions) as session:
                destinations.register(session, DEFAULT_TENANT, [url], limit=5)
        except DestinationLimitError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(name, range(24))) == 5


def test_endpoints_created_at_once_are_no_more_than_the_limit(sessions: Sessions) -> None:
    def create(number: int) -> bool:
        asked = EndpointSpec(url=f"https://host-{number}.example/")
        try:
            with transaction(sessions) as session:
                endpoints.create(
                    session, asked, tenant_id=DEFAULT_TENANT, vault=vault(), secret=None, max_endpoints=3
                )
        except ConflictError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(create, range(24))) == 3


def test_an_event_is_replayed_with_its_id(
    http: httpx2.Client, sessions: Sessions, receiver: Receiver
) -> None:
    created(http, receiver.url("/a"))
    finish(sessions, webhook_url=receiver.url("/own"))
    deliver_all(sessions)
    created(http, receiver.url("/later"))
    event_id = receiver.seen[0].id
    answer = http.post(f"/v1/webhook_events/{event_id}/replay")
    assert (answer.status_code, answer.json()["num_deliveries"]) == (202, 3)
    deliver_all(sessions)
    assert {path: len(receiver.at(path)) for path in ("/a", "/own", "/later")} == {
        "/a": 2,
        "/own": 2,
        "/later": 1,
    }
    assert {(each.id, each.body) for each in receiver.seen} == {(event_id, receiver.seen[0].body)}
    assert http.post(f"/v1/webhook_events/evt_{'0' * 32}/replay").status_code == 404


def test_an_event_is_replayed_100_times_to_a_destination_at_most(
    http: httpx2.Client, sessions: Sessions, receiver: Receiver
) -> None:
    endpoint = created(http, receiver.url("/endpoint"), events=["job.completed"])
    finish(sessions, webhook_url=receiver.url("/own"))
    replayed_often, other = dispatches(sessions)
    with transaction(sessions) as session:
        session.execute(
            update(WebhookDispatch).where(WebhookDispatch.id == replayed_often.id).values(num_replays=99)
        )
    path = f"/v1/webhook_events/{ids.event_id(other.event_id)}/replay"
    assert http.post(path).json()["num_over_limit"] == 0
    answer = http.post(path).json()
    assert (answer["num_deliveries"], answer["num_over_limit"]) == (1, 1)
    with transaction(sessions) as session:
        session.execute(update(WebhookDispatch).values(num_replays=100))
    refused = http.post(path)
    assert (refused.status_code, error_of(refused)["code"]) == (409, "replay_limit_exceeded")
    assert "100 times" in (error_of(refused)["message"] or "")
    answer = http.post(path_of(endpoint, "/replay")).json()
    assert (answer["num_deliveries"], answer["num_over_limit"]) == (0, 1)


def test_all_since_a_time_is_replayed_to_an_endpoint_that_was_disabled(
    http: httpx2.Client, sessions: Sessions, receiver: Receiver
) -> None:
    endpoint = created(http, receiver.url("/a"), events=["job.completed"])
    before = finish(sessions)
    deliver_all(sessions)
    since = datetime.now(UTC)
    receiver.answers["/a"] = status(410)
    missed = [finish(sessions) for _ in range(2)]
    finish(sessions, JobState.FAILED)
    deliver_all(sessions)
    missed.append(finish(sessions))
    assert http.get(path_of(endpoint)).json()["disabled_reason"] == "gone"
    assert http.post(path_of(endpoint, "/test")).status_code == 409
    assert http.post(path_of(endpoint, "/replay")).status_code == 409
    receiver.answers.clear()
    receiver.seen.clear()
    assert http.patch(path_of(endpoint), json={"enabled": True}).json()["num_failures"] == 0
    query = {"since": since.isoformat()}
    answer = http.post(path_of(endpoint, "/replay"), params=query).json()
    assert answer == {
        "object": "webhook_replay",
        "num_deliveries": 3,
        "next_since": None,
        "num_over_limit": 0,
    }
    deliver_all(sessions)
    heard = {each.event["data"]["id"] for each in receiver.seen}
    assert heard == {ids.job_id(job.id) for job in missed}
    assert http.post(path_of(endpoint, "/replay")).json()["num_deliveries"] == 4
    deliver_all(sessions)
    assert ids.job_id(before.id) in {each.event["data"]["id"] for each in receiver.seen}


def test_a_deleted_endpoint_takes_what_waited_for_it_along(
    http: httpx2.Client, sessions: Sessions, receiver: Receiver
) -> None:
    endpoint = created(http, receiver.url("/a"))
    receiver.answers["/a"] = status(500)
    finish(sessions)
    deliver_all(sessions)
    assert dispatch_states(sessions) == ["pending"]
    http.delete(path_of(endpoint))
    make_due(sessions)
    assert deliver_all(sessions) == 0
    assert dispatch_states(sessions) == []


def test_an_event_and_its_dispatches_stand_or_fall_with_the_state(
    http: httpx2.Client, sessions: Sessions
) -> None:
    created(http, "https://example.com/")
    with sessions() as session:
        job = submit_one(session)
        session.commit()
        lifecycle.cancel(session, job.id, tenant_id=job.tenant_id)
        assert session.scalar(select(WebhookDispatch.id)) is not None
        session.rollback()
        assert session.scalars(select(WebhookEvent.id)).all() == []
        assert session.scalars(select(WebhookDispatch.id)).all() == []
