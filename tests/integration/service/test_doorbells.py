"""Which workers a ring wakes, and which readers an announced end reaches."""

import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from uuid import UUID

import pytest
import redis
from pydantic import SecretStr
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from api.runtime.doorbell import Doorbell
from cli.stack.servers.valkey import EmbeddedValkey
from jobs import database, doorbell, lifecycle, live_output
from jobs.database import transaction
from jobs.models import DEFAULT_TENANT, Job
from jobs.settings import BrokerSettings
from support import PATIENCE, eventually, spec, submit_one
from worker.celery_app import make_app, register_tasks
from worker.doorbell import WorkerDoorbell


class Sent:
    """Stands in for Celery: remembers what it was to send."""

    def __init__(self) -> None:
        self.tasks: list[str] = []

    def send_task(self, name: str, *, queue: str, ignore_result: bool, retry: bool) -> None:
        self.tasks.append(f"{queue} {name} {ignore_result} {retry}")


@pytest.fixture
def broker(valkey: EmbeddedValkey) -> Iterator[redis.Redis]:
    with closing(doorbell.connect(valkey.url, socket_timeout=5)) as client:
        client.flushdb()
        yield client
        client.flushdb()


@contextmanager
def listening(broker: redis.Redis, url: str, *queues: str) -> Iterator["SimpleQueue[tuple[int, str]]"]:
    """Consume each queue as a worker does; collects the place of the queue and the doorbell."""
    rung: SimpleQueue[tuple[int, str]] = SimpleQueue()

    def note(place: int, name: str) -> None:
        rung.put((place, name))

    stopping = threading.Event()
    with ThreadPoolExecutor(len(queues)) as threads:
        for place, queue in enumerate(queues):
            threads.submit(consume, url, queue, partial(note, place), stopping)
        try:
            eventually(lambda: num_subscribed(broker) == len(queues))
            yield rung
        finally:
            stopping.set()


def consume(url: str, queue: str, on_ring: Callable[[str], None], stopping: threading.Event) -> None:
    app = make_app(BrokerSettings(url=SecretStr(url)))
    register_tasks(app, queue, on_ring)
    app.amqp.queues.select([queue])

    def run(_: object, message: Any) -> None:  # noqa: ANN401  # Celery has no types
        app.tasks[message.headers["task"]]()

    with (
        app.connection_for_read() as connection,
        app.amqp.TaskConsumer(connection.default_channel, callbacks=[run]),
    ):
        while not stopping.is_set():
            with suppress(TimeoutError):
                connection.drain_events(timeout=0.1)


def num_subscribed(broker: redis.Redis) -> int:
    return len([each for each in broker.client_list() if each["psub"] != "0"])


def of(url: str) -> BrokerSettings:
    return BrokerSettings(url=SecretStr(url))


def test_a_ring_wakes_every_worker_of_its_queue_and_no_other(
    valkey: EmbeddedValkey, broker: redis.Redis
) -> None:
    sender = make_app(of(valkey.url))
    queues = (doorbell.INFERENCE, doorbell.INFERENCE, doorbell.SERVICE)
    with listening(broker, valkey.url, *queues) as rung:
        assert doorbell.ring(sender, doorbell.INFERENCE)
        assert {rung.get(timeout=PATIENCE) for _ in range(2)} == {(0, "inference"), (1, "inference")}
        for name in (doorbell.SERVICE, doorbell.EVENTS, doorbell.BATCHES):
            assert doorbell.ring(sender, name)
            assert rung.get(timeout=PATIENCE) == (2, name)
    assert rung.empty()


def test_rings_that_no_worker_receives_leave_no_message(valkey: EmbeddedValkey, broker: redis.Redis) -> None:
    sender = make_app(of(valkey.url))
    for _ in range(100):
        assert doorbell.ring(sender, doorbell.INFERENCE)
    keys: Any = broker.keys("*")
    assert all(b"binding" in each for each in keys), "the name of the queue alone"
    with listening(broker, valkey.url, doorbell.INFERENCE) as rung:
        assert doorbell.ring(sender, doorbell.INFERENCE)
        rung.get(timeout=PATIENCE)
    assert rung.empty()


def test_a_thousand_submissions_at_once_are_one_message(valkey: EmbeddedValkey) -> None:
    sent = Sent()
    bell = Doorbell(of(valkey.url))
    bell.__dict__["_sender"] = sent
    for _ in range(1000):
        bell.ring(doorbell.INFERENCE)
    bell.start()
    try:
        eventually(lambda: sent.tasks)
        bell.ring(doorbell.SERVICE)
        eventually(lambda: len(sent.tasks) > 1)
    finally:
        bell.close()
    assert sent.tasks == [
        "inference longbatch.wake_inference True False",
        "service longbatch.wake_service True False",
    ]


def test_the_api_rings_on_another_connection_however_many_it_has_lost(
    valkey: EmbeddedValkey, broker: redis.Redis
) -> None:
    bell = Doorbell(of(valkey.url)).start()
    try:
        for _ in range(4):
            with listening(broker, valkey.url, doorbell.SERVICE) as rung:
                bell.ring(doorbell.SERVICE)
                assert rung.get(timeout=PATIENCE) == (0, doorbell.SERVICE)
            broker.client_kill_filter(_type="normal", skipme=True)
    finally:
        bell.close()


def test_rings_of_a_worker_wait_for_the_pause_and_become_one(
    broker: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doorbell, "PAUSE_SECONDS", 2 * PATIENCE)
    sent = Sent()
    worker = WorkerDoorbell(broker, sent)
    worker.ring(doorbell.EVENTS)
    worker.run_once()
    assert len(sent.tasks) == 1
    for _ in range(1000):
        worker.ring(doorbell.EVENTS)
        worker.run_once()
    assert len(sent.tasks) == 1
    monkeypatch.setattr(doorbell, "PAUSE_SECONDS", 0)
    worker.run_once()
    worker.run_once()
    assert sent.tasks == 2 * ["service longbatch.wake_events True False"]


def test_a_worker_that_stops_sends_the_rings_that_wait(
    broker: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doorbell, "PAUSE_SECONDS", 2 * PATIENCE)
    sent = Sent()
    worker = WorkerDoorbell(broker, sent)
    for name in (doorbell.EVENTS, doorbell.BATCHES):
        worker.ring(name)
        worker.run_once()
    worker.finish()
    assert [task.split()[1] for task in sent.tasks] == ["longbatch.wake_events", "longbatch.wake_batches"]


def test_an_end_is_announced_after_its_commit_and_never_without(engine: Engine) -> None:
    seen: list[tuple[UUID, str]] = []

    def on_ended(ended: Collection[UUID]) -> None:
        with Session(engine) as other:
            seen.extend((job_id, other.get_one(Job, job_id).state) for job_id in ended)

    sessions = database.make_sessions(engine, on_ended=on_ended)
    with transaction(sessions) as session:
        first, second = (submit_one(session, spec()).id for _ in range(2))
    with suppress(ZeroDivisionError), transaction(sessions) as session:
        lifecycle.cancel(session, first, tenant_id=DEFAULT_TENANT)
        raise ZeroDivisionError
    assert seen == []
    with transaction(sessions) as session:
        lifecycle.cancel(session, second, tenant_id=DEFAULT_TENANT)
    assert seen == [(second, "cancelled")]


def test_a_worker_tells_the_readers_of_all_processes(broker: redis.Redis) -> None:
    ended = [UUID(int=7), UUID(int=8), UUID(int=9)]
    worker = WorkerDoorbell(broker, Sent())
    worker.announce(ended[:2])
    worker.announce(ended[2:])
    worker.run_once()
    eventually(lambda: announced(broker) == ended)


def announced(broker: redis.Redis) -> list[UUID]:
    found: Any = broker.xrange(live_output.ENDED_KEY)
    return [live_output.ended_job(fields) for _, fields in found]


def test_an_end_is_announced_at_once_and_each_after_the_answer_to_the_last(broker: redis.Redis) -> None:
    ended = [UUID(int=number) for number in range(1, 6)]
    worker = WorkerDoorbell(broker, Sent())
    worker.run_once()  # it connects
    worker.announce(ended[:1])  # its thread does not run
    eventually(lambda: announced(broker) == ended[:1])
    worker.announce(ended[1:3])
    worker.announce(ended[3:4])
    assert announced(broker) == ended[:1]
    worker.run_once()
    worker.announce(ended[4:])
    worker.run_once()
    eventually(lambda: announced(broker) == ended)


def test_ends_are_announced_again_once_the_broker_is_back(broker: redis.Redis) -> None:
    ended = [UUID(int=1), UUID(int=2), UUID(int=3)]
    worker = WorkerDoorbell(broker, Sent())
    worker.run_once()
    worker.announce(ended[:1])
    eventually(lambda: announced(broker) == ended[:1])
    worker.run_once()
    broker.client_kill_filter(_type="normal", skipme=True)
    worker.announce(ended[1:2])  # the connection is closed, which shows only with the answer
    worker.run_once()
    eventually(lambda: announced(broker) == ended[:2])
    worker.run_once()
    worker.announce(ended[2:])
    eventually(lambda: announced(broker) == ended)


def test_a_worker_whose_broker_is_gone_keeps_no_ends(tmp_path: Path) -> None:
    own = EmbeddedValkey(tmp_path)
    own.start()
    worker = WorkerDoorbell(doorbell.connect(own.url, socket_timeout=PATIENCE), Sent())
    worker.run_once()
    own.stop()
    for number in range(1, 4):
        worker.announce([UUID(int=number)])
        worker.run_once()
        worker.run_once()
    assert worker._ended == []
    worker.announce([UUID(int=number) for number in range(5000)])
    assert len(worker._ended) == live_output.MAX_ENDED
    assert not worker._line.is_awaited, "it would look again at once, and again"
