"""Rows that cannot be written or read: they end, are logged, and stop no other tenant's deliveries."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from threading import Event
from uuid import UUID

import pytest
import structlog
from sqlalchemy import select, text, update
from sqlalchemy.orm import Session, sessionmaker

from jobs import telemetry
from jobs.database import transaction
from jobs.models import WebhookDispatch, WebhookEvent
from jobs.webhooks import claims
from webhook_support import (
    WEBHOOKS,
    Receiver,
    add_endpoint,
    claim,
    deliver_all,
    dispatch_states,
    dispatches,
    finish,
    make_due,
    run_until,
    status,
    tries,
    vault,
)
from worker.webhooks import delivery
from worker.webhooks.delivery import Deliverer

Sessions = sessionmaker[Session]


@contextmanager
def delivering(sessions: Sessions) -> Iterator[Callable[[Callable[[], bool]], None]]:
    """Run rounds of a deliverer until a condition holds; no round may fail."""
    deliverer = Deliverer(sessions, WEBHOOKS, vault(), wake=Event().set)
    deliverer.start()
    try:
        yield partial(run_until, deliverer)
    finally:
        deliverer.stop(within=5)


@contextmanager
def refusing(sessions: Sessions, table: str, condition: str) -> Iterator[None]:
    """The database refuses every new version of rows of the table that break the condition."""
    with transaction(sessions) as session:
        session.execute(text(f"ALTER TABLE {table} ADD CONSTRAINT refusing CHECK ({condition}) NOT VALID"))
    try:
        yield
    finally:
        with transaction(sessions) as session:
            session.execute(text(f"ALTER TABLE {table} DROP CONSTRAINT refusing"))


def first_and_others(sessions: Sessions, receiver: Receiver) -> tuple[WebhookDispatch, list[UUID]]:
    """A dispatch that a test poisons, and the events of three others."""
    for number in range(4):
        finish(sessions, webhook_url=receiver.url(f"/{number}"))
    first, *others = dispatches(sessions)
    return first, [each.event_id for each in others]


def recorded_events(sessions: Sessions) -> set[UUID]:
    return {each.event_id for each in tries(sessions)}


def test_an_event_tried_32767_times_is_recorded_like_any_other(
    sessions: Sessions, receiver: Receiver
) -> None:
    first, others = first_and_others(sessions, receiver)
    with transaction(sessions) as session:
        session.execute(
            update(WebhookDispatch).where(WebhookDispatch.id == first.id).values(num_attempts=32767)
        )
    with delivering(sessions) as until:
        until(lambda: dispatch_states(sessions) == ["delivered"] * 4)
    assert recorded_events(sessions) == {first.event_id, *others}
    assert {each.attempt for each in tries(sessions)} == {1, 32768}


@pytest.mark.parametrize("code", [204, 500])
def test_an_outcome_that_cannot_be_recorded_holds_up_no_other(
    sessions: Sessions, receiver: Receiver, code: int
) -> None:
    first, others = first_and_others(sessions, receiver)
    receiver.answers["/0"] = status(code)
    with (
        refusing(sessions, "webhook_deliveries", f"event_id <> '{first.event_id}'"),
        structlog.testing.capture_logs() as logs,
        delivering(sessions) as until,
    ):
        until(lambda: recorded_events(sessions) == set(others))
        until(lambda: "sending" not in dispatch_states(sessions))
        finish(sessions, webhook_url=receiver.url("/later"))
        until(lambda: len(tries(sessions)) == 4)
    by_id = {each.id: each.state for each in dispatches(sessions)}
    assert by_id.pop(first.id) == ("delivered" if code == 204 else "failed"), "it is not tried for ever"
    assert set(by_id.values()) == {"delivered"}
    (told,) = [each for each in logs if each["event"] == telemetry.WEBHOOK_UNRECORDED]
    assert (told["log_level"], told["dispatch_id"]) == ("error", str(first.id))
    assert told["event_id"] == f"evt_{first.event_id.hex}"


def test_a_dispatch_that_cannot_be_changed_holds_up_no_claim(sessions: Sessions, receiver: Receiver) -> None:
    first, others = first_and_others(sessions, receiver)
    with (
        refusing(sessions, "webhook_dispatches", f"id <> '{first.id}'"),
        structlog.testing.capture_logs() as logs,
        delivering(sessions) as until,
    ):
        until(lambda: recorded_events(sessions) == set(others))
    assert first.id not in {each.id for each in dispatches(sessions)}, "it is removed: it can be nothing else"
    assert [each["dispatch_id"] for each in logs if each["event"] == telemetry.WEBHOOK_GIVEN_UP] == [
        str(first.id)
    ]


def test_a_dispatch_whose_numbers_are_exhausted_is_given_up_alone(
    sessions: Sessions, receiver: Receiver
) -> None:
    first, others = first_and_others(sessions, receiver)
    with transaction(sessions) as session:
        session.execute(update(WebhookDispatch).where(WebhookDispatch.id == first.id).values(step=32767))
    with delivering(sessions) as until:
        until(lambda: recorded_events(sessions) == set(others))
    by_id = {each.id: each.state for each in dispatches(sessions)}
    assert by_id[first.id] == "failed"


def test_a_sender_lost_with_a_dispatch_that_cannot_be_changed_holds_up_no_claim(
    sessions: Sessions, receiver: Receiver
) -> None:
    first, others = first_and_others(sessions, receiver)
    with transaction(sessions) as session:
        claim(session, limit=1)
    make_due(sessions)
    with (
        refusing(sessions, "webhook_dispatches", f"id <> '{first.id}' OR state = 'sending'"),
        delivering(sessions) as until,
    ):
        until(lambda: recorded_events(sessions) >= set(others))


def test_an_event_whose_content_cannot_be_read_stops_no_other(sessions: Sessions, receiver: Receiver) -> None:
    add_endpoint(sessions, receiver.url("/full"), includes_output=True)
    finish(sessions)
    finish(sessions)
    first, second = dispatches(sessions)
    with transaction(sessions) as session:
        session.execute(
            update(WebhookEvent).where(WebhookEvent.id == first.event_id).values(payload={"data": "none"})
        )
    assert deliver_all(sessions) == 1
    assert recorded_events(sessions) == {second.event_id}
    assert {each.id: each.state for each in dispatches(sessions)}[first.id] == "failed"


def test_a_dispatch_whose_senders_die_again_and_again_is_given_up(sessions: Sessions) -> None:
    finish(sessions, webhook_url="https://receiver.example/")
    for _ in range(claims.MAX_LOST + 1):
        with transaction(sessions) as session:
            assert len(claim(session, limit=1)) == 1
        make_due(sessions)
    with transaction(sessions) as session:
        assert claim(session, limit=1) == []
        assert session.scalars(select(WebhookDispatch.state)).all() == ["failed"]


def test_a_dispatch_that_cannot_be_changed_holds_up_no_sweep(sessions: Sessions, receiver: Receiver) -> None:
    first, others = first_and_others(sessions, receiver)
    with transaction(sessions) as session:
        session.execute(
            update(WebhookDispatch).values(queued_at=WebhookDispatch.queued_at - timedelta(days=5))
        )
    with refusing(sessions, "webhook_dispatches", f"id <> '{first.id}'"):
        delivery.sweep(sessions)
    assert {each.event_id: each.state for each in dispatches(sessions)} == dict.fromkeys(others, "failed")


def test_an_old_event_that_cannot_be_changed_holds_up_no_other_s_adoption(
    sessions: Sessions, receiver: Receiver
) -> None:
    for _ in range(3):
        finish(sessions)
    with transaction(sessions) as session:
        session.execute(
            update(WebhookEvent).values(
                url=receiver.url(),
                payload={"data": {}},
                state="pending",
                next_delivery_at=WebhookEvent.created_at,
            )
        )
        first = session.scalars(select(WebhookEvent.id).order_by(WebhookEvent.id)).first()
    with refusing(sessions, "webhook_events", f"id <> '{first}'"):
        delivery.sweep(sessions)
    assert first not in {each.event_id for each in dispatches(sessions)}
    assert dispatch_states(sessions) == ["pending", "pending"]


def test_a_url_that_cannot_be_parsed_holds_up_no_job_s_end(sessions: Sessions) -> None:
    finish(sessions, webhook_url="https://[of-rules-before/")
    deliver_all(sessions)
    assert [each.outcome for each in tries(sessions)] == ["url_refused"]
