"""Slots of the sender: shared by tenants, servers and endpoints, whoever hangs."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler
from threading import Event
from urllib.parse import urlsplit

from sqlalchemy.orm import Session, sessionmaker

from jobs import lifecycle
from jobs.database import transaction
from jobs.ids import uuid7
from jobs.models import Tenant
from jobs.settings import WebhookSettings
from jobs.states import JobState
from jobs.webhooks import claims, results
from jobs.webhooks.fairness import Slots
from support import spec, submit_one
from webhook_support import (
    RANDOM,
    WEBHOOKS,
    Answer,
    Ended,
    Receiver,
    Seen,
    add_endpoint,
    claim,
    finish,
    receiving,
    run_until,
    vault,
)
from worker.webhooks.delivery import Deliverer

Sessions = sessionmaker[Session]


def test_one_destination_with_many_events_leaves_room_for_the_others(sessions: Sessions) -> None:
    add_endpoint(sessions, "https://busy.example/", events=["job.completed"])
    for _ in range(30):
        finish(sessions)
    add_endpoint(sessions, "https://quiet.example/", events=["job.failed"])
    finish(sessions, JobState.FAILED)
    with transaction(sessions) as session:
        first = claim(session, limit=4)
        again = claim(session, limit=100)
    assert [each.event_type for each in first].count("job.failed") == 1
    assert len(first) + len(again) == WEBHOOKS.endpoint_concurrency + 1


def test_a_hanging_receiver_holds_up_nobody_else(sessions: Sessions, receiver: Receiver) -> None:
    release = Event()

    receiver.answers["/hang"] = hang_until(release)
    add_endpoint(sessions, receiver.url("/hang"))
    add_endpoint(sessions, receiver.url("/well"))
    for _ in range(40):
        finish(sessions)
    settings = WebhookSettings(**(WEBHOOKS.model_dump() | {"concurrency": 16, "deadline_seconds": 20}))
    wanted = Event()
    deliverer = Deliverer(sessions, settings, vault(), wake=wanted.set)
    deliverer.start()

    run_until(deliverer, lambda: len(receiver.at("/well")) == 40)
    assert receiver.most_in_flight["/hang"] == settings.endpoint_concurrency
    release.set()
    deliverer.stop(within=5)


def hang_until(release: Event) -> Answer:
    def hang(_: BaseHTTPRequestHandler, __: Seen) -> None:
        release.wait(20)

    return hang


@contextmanager
def hanging_beside_a_deliverer(
    sessions: Sessions, *, num_receivers: int, num_events: int, **fields: object
) -> Iterator[tuple[list[Receiver], Callable[[Callable[[], bool]], None]]]:
    """Receivers that hold their answers back, and a deliverer's rounds until a condition is met."""
    release = Event()
    with ExitStack() as stack:
        hanging = [stack.enter_context(receiving()) for _ in range(num_receivers)]
        for each in hanging:
            each.answers["/hook"] = hang_until(release)
            add_endpoint(sessions, each.url())
        for _ in range(num_events):
            finish(sessions)
        settings = WebhookSettings(**(WEBHOOKS.model_dump() | {"deadline_seconds": 20} | fields))
        deliverer = Deliverer(sessions, settings, vault(), wake=Event().set)
        deliverer.start()
        yield hanging, partial(run_until, deliverer)
        release.set()
        deliverer.stop(within=5)


def test_many_receivers_that_hang_hold_up_nobody_else(sessions: Sessions, receiver: Receiver) -> None:
    with hanging_beside_a_deliverer(sessions, num_receivers=20, num_events=20) as (hanging, until):

        def all_hang() -> bool:
            return all(each.in_flight["/hook"] == WEBHOOKS.endpoint_concurrency for each in hanging)

        until(all_hang)
        finish(sessions, webhook_url=receiver.url("/well"))
        until(lambda: len(receiver.at("/well")) == 1)
        assert all_hang()


def test_a_tenant_whose_receivers_hang_leaves_slots_to_the_others(
    sessions: Sessions, receiver: Receiver
) -> None:
    with transaction(sessions) as session:
        other = Tenant(name=f"other {uuid7()}")
        session.add(other)
    slots = {"concurrency": 16, "endpoint_concurrency": 8}
    with hanging_beside_a_deliverer(sessions, num_receivers=4, num_events=8, **slots) as (hanging, until):
        until(lambda: sum(each.in_flight["/hook"] for each in hanging) == 12)
        with transaction(sessions) as session:
            job = submit_one(session, spec(webhook_url=receiver.url("/other")), tenant_id=other.id)
            lifecycle.cancel(session, job.id, tenant_id=other.id)
        until(lambda: len(receiver.at("/other")) == 1)
        assert sum(each.in_flight["/hook"] for each in hanging) == 12, "none of them has ended"


def test_endpoints_on_one_server_share_its_slots(sessions: Sessions) -> None:
    for number in range(10):
        add_endpoint(sessions, f"https://Victim.example{':443' if number % 2 else ''}/{number}")
    add_endpoint(sessions, "https://other.example/")
    for _ in range(10):
        finish(sessions)
    with transaction(sessions) as session:
        claimed = claim(session, limit=200)
        at_victim = [due for due in claimed if "ictim" in due.url]
        assert len(at_victim) == WEBHOOKS.max_per_server
        assert len({due.destination_id for due in at_victim}) == 10, "they take turns"
        assert len(claimed) - len(at_victim) == WEBHOOKS.endpoint_concurrency
        assert claim(session, limit=200) == []
    told = [(due, Ended(204)) for due in at_victim[:3]]
    with transaction(sessions) as session:
        results.record(session, told, WEBHOOKS, RANDOM)
    with transaction(sessions) as session:
        freed = {due.destination_id for due, _ in told}
        again = claims.claim(session, WEBHOOKS, vault(), Slots(200), freed=freed)
    assert len(again) == 3, "what waits for room goes on as soon as there is some"
    assert {urlsplit(due.url).hostname for due in again} == {"victim.example"}
