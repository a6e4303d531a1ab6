"""Claims of webhooks: bounded in what they read, and fair to whoever waits."""

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import httpx2
from sqlalchemy import select, text, update
from sqlalchemy.orm import Session, sessionmaker

from bench.webhook_claims import fill
from jobs.database import database_now, transaction
from jobs.models import WebhookDestination, WebhookDispatch
from jobs.webhooks import results
from jobs.webhooks.fairness import LOOK
from support import eventually
from webhook_support import RANDOM, WEBHOOKS, Ended, Receiver, claim, deliver_all, dispatch_states, finish
from worker.webhooks import delivery

Sessions = sessionmaker[Session]


def rows_read(session: Session) -> int:
    """Rows that the look of a claim visits, as Postgres counts them."""
    asked = {"now": database_now(session), "limit": 16, "at_most": 8, "at_most_server": 16}
    explained = session.scalar(text(f"EXPLAIN (ANALYZE, FORMAT JSON) {LOOK.text}"), asked)
    plan = explained if isinstance(explained, list) else json.loads(str(explained))
    return visited(plan[0]["Plan"])


def visited(node: dict[str, Any]) -> int:
    names = ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Index Recheck")
    own = (
        sum(node.get(name, 0) for name in names) * node.get("Actual Loops", 1)
        if "Scan" in node["Node Type"]
        else 0
    )
    return round(own) + sum(visited(each) for each in node.get("Plans", ()))


def test_a_claim_reads_as_little_beside_many_destinations_as_beside_few(sessions: Sessions) -> None:
    read = []
    for waiting in (200, 20_000):
        with transaction(sessions) as session:
            fill(session, waiting=waiting, due=100)
        with transaction(sessions) as session:
            session.execute(text("ANALYZE webhook_dispatches, webhook_destinations"))
            read.append(rows_read(session))
            assert len(claim(session, limit=16)) == 12
            session.rollback()
    few, many = read
    assert many <= few <= 400


def test_a_destination_is_due_with_its_first_dispatch_and_not_at_all_without(
    sessions: Sessions, receiver: Receiver
) -> None:
    finish(sessions, webhook_url=receiver.url())
    with transaction(sessions) as session:
        assert claim(session, limit=0) == []
    with sessions() as session:
        at, due = session.execute(
            select(WebhookDispatch.next_attempt_at, WebhookDestination.next_due_at).join(
                WebhookDestination, WebhookDestination.id == WebhookDispatch.destination_id
            )
        ).one()
        assert at == due
        assert session.scalars(select(WebhookDispatch.is_noticed)).all() == [True]
    deliver_all(sessions)
    assert dispatch_states(sessions) == ["delivered"]
    with sessions() as session:
        assert session.scalars(select(WebhookDestination.next_due_at)).all() == [None]


def test_what_a_process_of_before_left_without_a_time_is_found_again(
    sessions: Sessions, receiver: Receiver
) -> None:
    finish(sessions, webhook_url=receiver.url())
    with transaction(sessions) as session:  # as one that takes, fails and puts off without a word
        session.execute(update(WebhookDispatch).values(is_noticed=True))
    assert deliver_all(sessions) == 0
    delivery.sweep(sessions)
    assert deliver_all(sessions) == 1


def test_what_waits_at_a_destination_whose_time_is_too_late_is_found_again(
    sessions: Sessions, receiver: Receiver
) -> None:
    for _ in range(3):
        finish(sessions, webhook_url=receiver.url())
    with transaction(sessions) as session:
        assert claim(session, limit=0) == []
        later = database_now(session) + timedelta(hours=20)
        session.execute(update(WebhookDestination).values(next_due_at=later))
    with transaction(sessions) as session:
        assert claim(session, limit=10) == []
    delivery.sweep(sessions)
    with transaction(sessions) as session:
        assert len(claim(session, limit=10)) == 3


def test_a_late_success_ends_a_pause_for_all_that_waits(sessions: Sessions, receiver: Receiver) -> None:
    for _ in range(7):
        finish(sessions, webhook_url=receiver.url())
    with transaction(sessions) as session:
        due = claim(session, limit=30)
    with transaction(sessions) as session:
        results.record(session, [(each, Ended(500)) for each in due[:5]], WEBHOOKS, RANDOM)
    for _ in range(2):
        finish(sessions, webhook_url=receiver.url())
    with transaction(sessions) as session:
        assert claim(session, limit=30) == [], "it is paused"
    with transaction(sessions) as session:
        results.record(session, [(due[5], Ended(200))], WEBHOOKS, RANDOM)
    with transaction(sessions) as session:
        assert len(claim(session, limit=30)) == 2


def test_a_claim_does_not_wait_for_a_submission_that_names_its_destination(
    http: httpx2.Client, sessions: Sessions
) -> None:
    with transaction(sessions) as session:
        session.execute(text("LOCK TABLE jobs IN EXCLUSIVE MODE"))  # the submission cannot end
        with ThreadPoolExecutor(1) as pool:
            asked = {"input": "a", "webhook_url": "https://receiver.example/"}
            answer = pool.submit(http.post, "/v1/jobs", json=asked)
            with sessions() as other:
                eventually(lambda: other.scalars(select(WebhookDestination.id)).all())
                other.rollback()
                other.execute(text("SELECT FROM webhook_destinations FOR UPDATE NOWAIT"))
                other.rollback()
            session.rollback()
            assert answer.result().status_code == 202


def test_destinations_that_no_request_names_any_more_are_removed_once_nothing_waits(
    sessions: Sessions, receiver: Receiver
) -> None:
    finish(sessions, webhook_url=receiver.url())
    finish(sessions, webhook_url="https://waits.example/")
    with transaction(sessions) as session:
        assert claim(session, limit=0) == []
        session.execute(
            update(WebhookDestination).values(named_at=WebhookDestination.named_at - timedelta(hours=2))
        )
    assert WEBHOOKS.allowed_hosts
    with transaction(sessions) as session:
        session.execute(
            update(WebhookDispatch)
            .where(WebhookDispatch.url == receiver.url())
            .values(state="delivered", next_attempt_at=None)
        )
        session.execute(update(WebhookDestination).values(next_due_at=None))
    delivery.sweep(sessions)
    with sessions() as session:
        kept = session.scalars(select(WebhookDestination.id)).all()
        waits = select(WebhookDispatch.destination_id).where(WebhookDispatch.state == "pending")
        assert kept == session.scalars(waits).all()
