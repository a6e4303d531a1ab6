"""Deliveries against real receivers: signed, tried again, given up, and fair to whoever answers well."""

import json
import queue
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from threading import Event

import pytest
from pydantic import SecretStr
from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session, sessionmaker
from standardwebhooks import Webhook

import ending
from api_server import WEBHOOK_SECRET
from jobs import ids
from jobs.database import database_now, transaction
from jobs.models import DEFAULT_TENANT, WebhookBreaker, WebhookDelivery, WebhookDispatch, WebhookEvent
from jobs.settings import WebhookSettings
from jobs.states import FinishReason, JobState
from jobs.transitions import Lease
from jobs.webhooks import DELIVERY_DELAYS, endpoints, fanout, results
from jobs.webhooks.endpoints import EndpointSpec
from jobs.webhooks.vault import Vault
from support import PATIENCE, eventually, job_in, output_of
from webhook_support import (
    RANDOM,
    WEBHOOKS,
    Ended,
    Receiver,
    add_endpoint,
    breakers,
    claim,
    deliver_all,
    deliver_due,
    dispatch_states,
    dispatches,
    endpoint_now,
    finish,
    make_due,
    seconds_until_next,
    send,
    status,
    tries,
    vault,
)
from worker.maintenance import sweep_deleted
from worker.webhooks import delivery
from worker.webhooks.delivery import Deliverer

Sessions = sessionmaker[Session]


def test_an_event_is_delivered_once_signed_and_recorded(sessions: Sessions, receiver: Receiver) -> None:
    job = finish(sessions, webhook_url=receiver.url())
    assert deliver_all(sessions) == 1
    assert deliver_all(sessions) == 0
    (seen,) = receiver.seen
    told = Webhook(WEBHOOK_SECRET).verify(seen.body, seen.headers)
    assert (told["type"], told["data"]["id"]) == ("job.completed", f"job_{job.id.hex}")
    assert told["data"]["state"] == "completed"
    assert told["data"]["usage"] == {
        "prompt_tokens": 100,
        "completion_tokens": 3,
        "total_tokens": 103,
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    assert told["data"]["result_url"] == f"/v1/jobs/job_{job.id.hex}/result"
    assert "output" not in told["data"]
    assert seen.id == told["id"] == ids.event_id(dispatches(sessions)[0].event_id)
    with sessions() as session:
        assert session.scalars(select(WebhookEvent.payload)).all() == [told], "it is sent as it was written"
    assert dispatch_states(sessions) == ["delivered"]
    assert [(each.attempt, each.status, each.outcome) for each in tries(sessions)] == [(1, 204, "delivered")]


def test_the_event_of_a_job_counts_its_thinking_and_its_cached_tokens(
    sessions: Sessions, receiver: Receiver
) -> None:
    add_endpoint(sessions, receiver.url())
    thought = replace(output_of("some text"), reasoning="Hm.", reasoning_tokens=2, cached_tokens=64)
    with transaction(sessions) as session:
        job = job_in(session, JobState.RUNNING)
        assert job.lease_id is not None
        ending.complete(session, Lease(job.id, job.lease_id), thought, FinishReason.STOP)
    deliver_all(sessions)
    usage = receiver.seen[0].event["data"]["usage"]
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 2}
    assert usage["prompt_tokens_details"] == {"cached_tokens": 64}


def test_an_output_comes_along_only_where_it_is_asked_for(sessions: Sessions, receiver: Receiver) -> None:
    add_endpoint(sessions, receiver.url("/plain"))
    add_endpoint(sessions, receiver.url("/full"), includes_output=True)
    finish(sessions, webhook_url=receiver.url("/own"), webhook_includes_output=True)
    deliver_all(sessions)
    assert "output" not in receiver.at("/plain")[0].event["data"]
    assert receiver.at("/full")[0].event["data"]["output"] == "some text"
    assert receiver.at("/own")[0].event["data"]["output"] == "some text"
    assert len({each.id for each in receiver.seen}) == 1


def test_an_endpoint_gets_the_event_types_of_its_filter(sessions: Sessions, receiver: Receiver) -> None:
    add_endpoint(sessions, receiver.url("/all"))
    add_endpoint(sessions, receiver.url("/failed"), events=["job.failed"])
    add_endpoint(sessions, receiver.url("/started"), events=["job.started", "job.completed"])
    add_endpoint(sessions, receiver.url("/off"), is_enabled=False)
    finish(sessions)
    finish(sessions, JobState.FAILED)
    deliver_all(sessions)
    heard = {
        path: sorted(each.event["type"] for each in receiver.at(path))
        for path in ("/all", "/failed", "/started", "/off")
    }
    assert heard == {
        "/all": ["job.completed", "job.failed"],
        "/failed": ["job.failed"],
        "/started": ["job.completed", "job.started", "job.started"],
        "/off": [],
    }


def test_a_failed_delivery_is_tried_again_stamped_anew_under_the_same_id(
    sessions: Sessions, receiver: Receiver
) -> None:
    receiver.answers["/hook"] = status(500)
    finish(sessions, webhook_url=receiver.url())
    assert deliver_all(sessions) == 1
    assert dispatch_states(sessions) == ["pending"]
    wait = seconds_until_next(sessions)
    assert 0.7 * DELIVERY_DELAYS[1].total_seconds() < wait < 1.3 * DELIVERY_DELAYS[1].total_seconds()
    assert deliver_all(sessions) == 0
    receiver.answers["/hook"] = status(200)
    eventually(
        lambda: int(datetime.now(UTC).timestamp()) > int(receiver.seen[0].headers["webhook-timestamp"])
    )
    make_due(sessions)
    assert deliver_all(sessions) == 1
    first, second = receiver.seen
    assert (first.id, first.body) == (second.id, second.body)
    for name in ("webhook-timestamp", "webhook-signature"):
        assert first.headers[name] != second.headers[name]
    assert dispatch_states(sessions) == ["delivered"]
    assert [each.status for each in tries(sessions)] == [500, 200]


@pytest.mark.parametrize(
    ("given", "least", "most"),
    [
        ("120", 110, 121),
        ("0", 3, 7),
        ("1", 3, 7),
        ("99999999999999", 86000, 86401),
        ("-5", 3, 7),
        ("soon", 3, 7),
        ("in ten minutes, as a date", 590, 601),
    ],
)
def test_retry_after_is_honoured_within_bounds(
    sessions: Sessions, receiver: Receiver, given: str, least: float, most: float
) -> None:
    if given.endswith("date"):
        given = format_datetime(datetime.now(UTC) + timedelta(minutes=10), usegmt=True)
    receiver.answers["/hook"] = status(429, retry_after=given)
    finish(sessions, webhook_url=receiver.url())
    deliver_all(sessions)
    assert least < seconds_until_next(sessions) < most


def test_an_event_is_given_up_after_its_last_try(sessions: Sessions, receiver: Receiver) -> None:
    receiver.answers["/hook"] = status(503)
    finish(sessions, webhook_url=receiver.url())
    for _ in DELIVERY_DELAYS:
        assert dispatch_states(sessions) == ["pending"]
        make_due(sessions)
        assert deliver_all(sessions) == 1
    assert dispatch_states(sessions) == ["failed"]
    assert len(tries(sessions)) == len(DELIVERY_DELAYS)


def test_what_waits_for_four_days_is_given_up(sessions: Sessions) -> None:
    finish(sessions, webhook_url="https://receiver.example/")
    with transaction(sessions) as session:
        session.execute(
            update(WebhookDispatch).values(queued_at=WebhookDispatch.queued_at - timedelta(days=5))
        )
    delivery.sweep(sessions)
    assert dispatch_states(sessions) == ["failed"]


def test_events_that_an_older_process_left_pending_are_delivered(
    sessions: Sessions, receiver: Receiver
) -> None:
    finish(sessions)
    body = {"id": "evt_1", "object": "event", "type": "job.completed", "data": {}}
    with transaction(sessions) as session:
        session.execute(
            update(WebhookEvent).values(
                url=receiver.url(), payload=body, state="pending", next_delivery_at=WebhookEvent.created_at
            )
        )
    delivery.sweep(sessions)
    deliver_all(sessions)
    assert json.loads(receiver.seen[0].body) == body
    assert dispatch_states(sessions) == ["delivered"]


def test_a_sender_that_dies_leaves_the_event_to_another(sessions: Sessions, receiver: Receiver) -> None:
    finish(sessions, webhook_url=receiver.url())
    with transaction(sessions) as session:
        (dead,) = claim(session, limit=10)
    assert deliver_all(sessions) == 0, "it is claimed until its deadline"
    assert WEBHOOKS.deadline_seconds < seconds_until_next(sessions) < 60
    make_due(sessions)
    assert deliver_all(sessions) == 1
    assert (dispatch_states(sessions), dispatches(sessions)[0].num_attempts) == (["delivered"], 2)
    answer = send(dead, WEBHOOKS)
    with transaction(sessions) as session:
        results.record(session, [(dead, answer)], WEBHOOKS, RANDOM)
    assert dispatch_states(sessions) == ["delivered"]


def test_a_late_sender_s_failure_does_not_undo_what_a_second_sender_did(
    sessions: Sessions, receiver: Receiver
) -> None:
    finish(sessions, webhook_url=receiver.url())
    with transaction(sessions) as session:
        (late,) = claim(session, limit=1)
    receiver.answers["/hook"] = status(500)
    failure = send(late, WEBHOOKS)
    make_due(sessions)  # its lease is over
    with transaction(sessions) as session:
        (second,) = claim(session, limit=1)
    with transaction(sessions) as session:
        results.record(session, [(late, failure)], WEBHOOKS, RANDOM)
    (only,) = dispatches(sessions)
    assert (only.state, only.num_attempts) == ("sending", 2), "the second sender still has it"
    receiver.answers["/hook"] = status(204)
    success = send(second, WEBHOOKS)
    with transaction(sessions) as session:
        results.record(session, [(second, success)], WEBHOOKS, RANDOM)
    with transaction(sessions) as session:
        results.record(session, [(late, failure)], WEBHOOKS, RANDOM)
    assert dispatch_states(sessions) == ["delivered"]


def test_an_event_that_is_pruned_while_it_is_sent_holds_up_no_record(
    sessions: Sessions, receiver: Receiver
) -> None:
    finish(sessions, webhook_url=receiver.url())
    finish(sessions, webhook_url=receiver.url())
    with transaction(sessions) as session:
        gone, kept = claim(session, limit=10)
        session.execute(delete(WebhookEvent).where(WebhookEvent.id == gone.event_id))
    told = [(due, send(due, WEBHOOKS)) for due in (gone, kept)]
    with transaction(sessions) as session:
        results.record(session, told, WEBHOOKS, RANDOM)
        assert session.scalars(select(WebhookDelivery.event_id)).all() == [kept.event_id]
    assert dispatch_states(sessions) == ["delivered"]


def test_410_disables_an_endpoint_and_tells_the_others(sessions: Sessions, receiver: Receiver) -> None:
    gone, _ = add_endpoint(sessions, receiver.url("/gone"))
    add_endpoint(sessions, receiver.url("/other"), events=["webhook_endpoint.disabled"])
    receiver.answers["/gone"] = status(410)
    finish(sessions)
    deliver_all(sessions)
    finish(sessions)
    deliver_all(sessions)
    assert len(receiver.at("/gone")) == 1
    assert endpoint_now(sessions, gone).disabled_reason == "gone"
    (notice,) = receiver.at("/other")
    assert notice.event["data"] == {
        "id": ids.endpoint_id(gone.id),
        "url": receiver.url("/gone"),
        "reason": "gone",
    }


def test_410_ends_the_tries_of_a_job_s_own_url(sessions: Sessions, receiver: Receiver) -> None:
    receiver.answers["/hook"] = status(410)
    finish(sessions, webhook_url=receiver.url())
    assert deliver_all(sessions) == 1
    assert dispatch_states(sessions) == ["failed"]


def test_five_failures_in_a_row_pause_a_destination_and_one_success_opens_it(
    sessions: Sessions, receiver: Receiver
) -> None:
    endpoint, _ = add_endpoint(sessions, receiver.url("/bad"))
    receiver.answers["/bad"] = status(500)
    for _ in range(4):
        finish(sessions)
    assert deliver_all(sessions) == 4
    assert breakers(sessions)[0].paused_until is None
    for _ in range(20):
        finish(sessions)
    settings = WEBHOOKS.model_copy(update={"endpoint_concurrency": 1})
    assert deliver_all(sessions, settings) == 1, "the fifth failure opens the breaker"
    (breaker,) = breakers(sessions)
    assert breaker.num_failures == 5
    assert breaker.paused_until is not None
    assert deliver_all(sessions) == 0
    with transaction(sessions) as session:  # a slow machine would reach their next tries
        tried = WebhookDispatch.num_attempts > 0
        later = database_now(session) + timedelta(hours=1)
        session.execute(update(WebhookDispatch).where(tried).values(next_attempt_at=later))
    end_pause(sessions)
    with transaction(sessions) as session:
        probe = claim(session, limit=100)
        assert len(probe) == 1, "half open: one exchange asks"
        session.rollback()
    receiver.answers["/bad"] = status(200)
    assert deliver_all(sessions) == 19
    assert breakers(sessions) == []
    assert endpoint_now(sessions, endpoint).disabled_reason is None


def end_pause(sessions: Sessions) -> None:
    with transaction(sessions) as session:
        session.execute(update(WebhookBreaker).values(paused_until=None))
        session.execute(update(WebhookDispatch).values(is_noticed=False))


def test_an_endpoint_that_fails_for_days_is_disabled(sessions: Sessions, receiver: Receiver) -> None:
    endpoint, _ = add_endpoint(sessions, receiver.url("/bad"))
    receiver.answers["/bad"] = status(500)
    for _ in range(4):
        finish(sessions)
    deliver_all(sessions)
    with transaction(sessions) as session:
        since = WebhookBreaker.failing_since - timedelta(days=5)
        session.execute(update(WebhookBreaker).values(failing_since=since))
    finish(sessions)
    deliver_all(sessions)
    assert endpoint_now(sessions, endpoint).disabled_reason == "failing"
    assert set(dispatch_states(sessions)) == {"failed"}


def test_what_a_disabled_endpoint_has_queued_fails_in_bounded_parts(
    sessions: Sessions, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fanout, "MAX_FAILED", 2)
    endpoint, _ = add_endpoint(sessions, receiver.url())
    for _ in range(7):
        finish(sessions)
    with transaction(sessions) as session:
        endpoints.disable(session, endpoint.id, "owner", now=database_now(session))
    assert dispatch_states(sessions).count("failed") == 2
    assert sweep_deleted(sessions) == 2
    with transaction(sessions) as session:
        assert endpoints.fail_pending(session, endpoint.id, tenant_id=DEFAULT_TENANT) == 2
    assert (sweep_deleted(sessions), sweep_deleted(sessions)) == (1, 0)
    assert dispatch_states(sessions) == ["failed"] * 7
    with transaction(sessions) as session:
        found = endpoints.get(session, endpoint.id, tenant_id=DEFAULT_TENANT)
        endpoints.update_endpoint(session, found, EndpointSpec(is_enabled=True))
    finish(sessions)
    with transaction(sessions) as session:
        assert endpoints.fail_pending(session, endpoint.id, tenant_id=DEFAULT_TENANT) == 0, "it is enabled"
    assert deliver_all(sessions) == 1


def test_an_endpoint_that_is_disabled_while_it_is_sent_to_stays_as_it_is(
    sessions: Sessions, receiver: Receiver
) -> None:
    endpoint, _ = add_endpoint(sessions, receiver.url())
    finish(sessions)
    with transaction(sessions) as session:
        (sent,) = claim(session, limit=1)
    with transaction(sessions) as session:
        endpoints.disable(session, endpoint.id, "gone", now=database_now(session))
    with transaction(sessions) as session:
        results.record(session, [(sent, Ended(500))], WEBHOOKS, RANDOM)
    assert dispatch_states(sessions) == ["failed"]


def test_a_deliverer_that_stops_records_what_has_ended_and_can_be_stopped_again(
    sessions: Sessions, receiver: Receiver
) -> None:
    for number in range(5):
        finish(sessions, webhook_url=receiver.url(f"/{number}"))
    woken: queue.SimpleQueue[None] = queue.SimpleQueue()
    deliverer = Deliverer(sessions, WEBHOOKS, vault(), wake=lambda: woken.put(None))
    deliverer.start()
    deliverer.run_once()
    for _ in range(1 + 5):  # once by the claim, once by each end
        woken.get(timeout=PATIENCE)
    deliverer.stop(within=0)
    assert dispatch_states(sessions) == ["delivered"] * 5
    deliverer.stop(within=0)
    Deliverer(sessions, WEBHOOKS, vault(), wake=Event().set).stop(within=0)  # one that never ran


def test_a_secret_that_cannot_be_opened_is_a_failed_try(sessions: Sessions, receiver: Receiver) -> None:
    finish(sessions, webhook_url=receiver.url(), webhook_secret=b"\x01sealed under a key that is lost")
    deliver_all(sessions)
    assert [each.outcome for each in tries(sessions)] == ["secret_unreadable"]
    assert receiver.seen == []


@pytest.mark.parametrize("code", [301, 302, 307, 308])
def test_a_redirect_is_a_failure_and_is_not_followed(
    sessions: Sessions, receiver: Receiver, code: int
) -> None:
    receiver.answers["/hook"] = status(code, location=receiver.url("/elsewhere"))
    finish(sessions, webhook_url=receiver.url())
    deliver_all(sessions)
    assert [each.path for each in receiver.seen] == ["/hook"]
    assert [(each.status, each.outcome) for each in tries(sessions)] == [(code, "bad_status")]


def test_a_delivery_that_breaks_before_it_is_sent_is_on_record(sessions: sessionmaker[Session]) -> None:
    with transaction(sessions) as session:
        job_in(session, JobState.COMPLETED, webhook_url="https://receiver.example/hook")
    settings = WebhookSettings(secret=SecretStr("whsec_no secret"))
    vault = Vault.of(settings)
    assert vault is not None
    assert deliver_due(sessions, settings, vault) == 1
    with sessions() as session:
        assert session.scalars(select(WebhookDelivery.outcome)).all() == ["internal_error"]
