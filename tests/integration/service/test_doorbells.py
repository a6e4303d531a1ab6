"""Who hears a ring, and who hears of a job's end: at once, and after the commit."""

import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
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
from jobs.doorbell import Ring
from jobs.models import DEFAULT_TENANT, Job
from jobs.settings import BrokerSettings
from support import PATIENCE, eventually, spec, submit_one
from worker.doorbell import DoorbellListener, WorkerDoorbell


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
def listening(broker: redis.Redis, valkey: EmbeddedValkey, num: int = 1) -> Iterator["SimpleQueue[str]"]:
    """So many workers wait for rings; none is left afterwards."""
    heard: SimpleQueue[str] = SimpleQueue()
    settings = BrokerSettings(url=SecretStr(valkey.url))
    workers = [DoorbellListener(settings, doorbell.SERVICE, heard.put) for _ in range(num)]
    with waiting(broker, workers):
        yield heard


@contextmanager
def waiting(broker: redis.Redis, workers: Sequence[DoorbellListener]) -> Iterator[None]:
    for each in workers:
        each.loop.start()
    try:
        eventually(lambda: num_waiting(broker) == len(workers))
        yield
    finally:
        for each in workers:
            each.begin_stop()
        assert all(each.loop.join(60) for each in workers)


def num_waiting(broker: redis.Redis) -> int:
    """Count the clients that wait now: an idle connection too keeps the name of its last command."""
    clients = broker.client_list()
    return len([each for each in clients if each["cmd"] == "blpop" and "b" in each["flags"]])


def ring(broker: redis.Redis, sent: Sent, name: str) -> None:
    doorbell.acknowledge(broker, name)
    assert doorbell.ring(broker, sent, name)


def test_a_ring_reaches_a_worker_that_listens_without_celery(
    valkey: EmbeddedValkey, broker: redis.Redis
) -> None:
    sent = Sent()
    with listening(broker, valkey) as heard:
        for name in (doorbell.SERVICE, doorbell.EVENTS):
            ring(broker, sent, name)
            assert heard.get(timeout=60) == name
    assert sent.tasks == []


def test_a_ring_that_no_worker_listens_for_goes_through_celery(broker: redis.Redis) -> None:
    sent = Sent()
    ring(broker, sent, doorbell.INFERENCE)
    assert sent.tasks == ["inference longbatch.wake_inference True False"]


def test_the_api_s_ring_is_sent_when_it_returns(valkey: EmbeddedValkey, broker: redis.Redis) -> None:
    bell = Doorbell(BrokerSettings(url=SecretStr(valkey.url)))
    bell._line.connect()  # its thread does not run
    broker.set("longbatch:bell:inference:listening", b"1")
    bell.ring(doorbell.INFERENCE)
    heard = doorbell.hear(broker, doorbell.INFERENCE, seconds=1)
    assert heard == Ring(doorbell.INFERENCE)


def test_a_ring_of_the_api_from_before_it_was_connected_waits_for_no_answer(
    valkey: EmbeddedValkey, broker: redis.Redis
) -> None:
    bell = Doorbell(BrokerSettings(url=SecretStr(valkey.url), socket_timeout_seconds=4 * PATIENCE))
    with listening(broker, valkey) as heard:
        bell.ring(doorbell.SERVICE)
        try:
            bell.start()
            assert heard.get(timeout=PATIENCE) == doorbell.SERVICE
        finally:
            bell.close()


def test_the_api_rings_on_another_connection_however_many_it_has_lost(
    valkey: EmbeddedValkey, broker: redis.Redis
) -> None:
    bell = Doorbell(BrokerSettings(url=SecretStr(f"{valkey.url}?max_connections=2"))).start()
    try:
        for _ in range(4):
            eventually(lambda: bell._line.connection is not None)
            broker.client_kill_filter(_type="normal", skipme=True)
            with listening(broker, valkey) as heard:
                bell.ring(doorbell.SERVICE)
                assert heard.get(timeout=PATIENCE) == doorbell.SERVICE
    finally:
        bell.close()


def test_a_ring_of_the_api_asks_a_frozen_broker_nothing(tmp_path: Path) -> None:
    own = EmbeddedValkey(tmp_path)
    own.start()
    try:
        url = SecretStr(f"{own.url}?health_check_interval=1")
        bell = Doorbell(BrokerSettings(url=url, socket_timeout_seconds=4 * PATIENCE))
        bell._line.connect()  # its thread does not run
        assert bell._line.connection is not None
        bell._line.connection.next_health_check = 0  # due
        doorbell.connect(own.url, socket_timeout=PATIENCE).client_pause(int(8000 * PATIENCE))
        ringing = threading.Thread(target=bell.ring, args=[doorbell.SERVICE], daemon=True)
        ringing.start()
        ringing.join(PATIENCE)
        assert not ringing.is_alive()
    finally:
        own.stop()


def test_one_ring_wakes_one_of_the_workers_that_listen(valkey: EmbeddedValkey, broker: redis.Redis) -> None:
    with listening(broker, valkey, num=2) as heard:
        for name in (doorbell.SERVICE, doorbell.EVENTS):
            ring(broker, Sent(), name)
            assert heard.get(timeout=60) == name, "no second message of the ring before"
    assert heard.empty()


def test_a_ring_whose_work_nobody_can_take_reaches_every_worker_once(
    valkey: EmbeddedValkey, broker: redis.Redis
) -> None:
    heard: SimpleQueue[int] = SimpleQueue()
    doorbells = [WorkerDoorbell(broker, Sent()) for _ in range(3)]

    def listener(number: int) -> DoorbellListener:
        def cannot_take(_: str) -> None:
            heard.put(number)
            doorbells[number].pass_on()
            doorbells[number].run_once()

        settings = BrokerSettings(url=SecretStr(valkey.url))
        return DoorbellListener(settings, doorbell.INFERENCE, cannot_take, hear=doorbells[number].hear)

    with waiting(broker, [listener(number) for number in range(3)]):
        ring(broker, Sent(), doorbell.INFERENCE)
        assert {heard.get(timeout=60) for _ in range(3)} == {0, 1, 2}
        eventually(lambda: num_waiting(broker) == 3)  # all have passed it on, and the first has it back
        assert heard.empty()
        assert not broker.exists("longbatch:bell:inference")


def unheard(broker: redis.Redis) -> Ring:
    """Take the ring that reaches the next worker."""
    found: Any = eventually(lambda: broker.lpop("longbatch:bell:inference"))
    return Ring.parse(found.decode())


def test_a_ring_that_is_back_does_not_hide_a_new_one(broker: redis.Redis) -> None:
    worker = WorkerDoorbell(broker, Sent())
    back = Ring(doorbell.INFERENCE, "another", 1)
    heard = [worker.hear(each) for each in (back, Ring(doorbell.INFERENCE), back)]
    worker.pass_on()
    worker.run_once()
    assert heard == [True, True, False]
    assert unheard(broker).begun_by not in {"", "another"}


def test_rings_that_follow_each_other_closely_all_reach_the_next_worker(broker: redis.Redis) -> None:
    worker = WorkerDoorbell(broker, Sent())
    worker.loop.start()
    try:
        found = []
        for name in ("first", "second"):
            worker.hear(Ring(doorbell.INFERENCE, name, 1))
            worker.pass_on()
            found.append(unheard(broker))
    finally:
        worker.loop.stop()
    assert found == [Ring(doorbell.INFERENCE, name, 2) for name in ("first", "second")]


def test_rings_that_are_passed_on_together_become_a_new_one(broker: redis.Redis) -> None:
    worker = WorkerDoorbell(broker, Sent())
    for name in ("first", "second"):
        worker.hear(Ring(doorbell.INFERENCE, name, 1))
        worker.pass_on()
    worker.run_once()
    ring = unheard(broker)
    assert (ring.num_hops, worker.hear(ring), broker.exists("longbatch:bell:inference")) == (1, False, 0)
    assert ring.begun_by not in {"first", "second"}


@pytest.mark.parametrize("is_delayed", [False, True])
def test_a_ring_that_waits_in_a_worker_is_passed_on_when_it_stops(
    broker: redis.Redis, *, is_delayed: bool
) -> None:
    worker = WorkerDoorbell(broker, Sent())
    worker.hear(Ring(doorbell.INFERENCE, "first", 1))
    worker.pass_on()
    worker.run_once()
    worker.hear(Ring(doorbell.INFERENCE, "second", 1))
    if is_delayed:
        worker.pass_on()
        worker.run_once()
    worker.finish()
    assert {unheard(broker).begun_by for _ in range(2)} == {"first", "second"}


def test_a_ring_of_a_worker_that_is_gone_does_not_go_round_for_ever() -> None:
    ring: doorbell.Ring | None = doorbell.Ring(doorbell.INFERENCE, begun_by="gone")
    num_hops = 0
    while ring is not None:
        ring = doorbell.Ring.parse(ring.message).passed_on("another")
        num_hops += 1
    assert num_hops < 50


def test_a_worker_that_stops_passes_the_ring_on(valkey: EmbeddedValkey, broker: redis.Redis) -> None:
    heard: SimpleQueue[str] = SimpleQueue()
    worker = DoorbellListener(BrokerSettings(url=SecretStr(valkey.url)), doorbell.SERVICE, heard.put)
    ring(broker, Sent(), doorbell.SERVICE)  # nobody listens
    doorbell.pass_on(broker, doorbell.Ring(doorbell.SERVICE))
    worker.begin_stop()
    worker.run_once()
    assert (heard.empty(), broker.lrange("longbatch:bell:service", 0, -1)) == (True, [b"service"])


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
