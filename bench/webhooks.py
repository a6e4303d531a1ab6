"""`python -m bench.webhooks`: webhook deliveries against Celery's own no-op rate, and while a receiver hangs.

Postgres, Redis, a service worker and the receivers run here, each in its own process. The peer is a Celery
worker of one process with a thread pool that runs a task which does nothing.
"""

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import celery
from pydantic import SecretStr
from sqlalchemy import func, insert, select, text
from sqlalchemy.orm import Session, sessionmaker

from bench import figures
from bench.figures import Figure, Servers, until
from jobs import doorbell
from jobs.database import transaction
from jobs.ids import uuid7
from jobs.models import DEFAULT_TENANT, WebhookDispatch, WebhookEndpoint, WebhookEvent
from jobs.sealing.keys import new_key
from jobs.settings import BrokerSettings, WebhookSettings
from jobs.webhooks import endpoints, fanout
from jobs.webhooks.endpoints import EndpointSpec
from jobs.webhooks.vault import Vault
from worker.celery_app import make_app

_NUM_ENDPOINTS: Final = 20
_PERIOD_SECONDS: Final = 0.25  # one event per endpoint in each period: this measures waiting, not overload
_PEER: Final = """
import sys, threading, celery
app = celery.Celery(broker=sys.argv[1], set_as_current=False)
app.conf.update(task_ignore_result=True, worker_enable_remote_control=False, worker_hijack_root_logger=False,
                worker_redirect_stdouts=False)
left = [int(sys.argv[2])]
lock = threading.Lock()
@app.task(name="nothing")
def nothing():
    with lock:
        left[0] -= 1
        if left[0] == 0:
            print("done", flush=True)
app.Worker(pool="threads", concurrency=4, queues=["bench"], quiet=True, without_gossip=True,
           without_mingle=True, without_heartbeat=True).start()
"""


_RECEIVER: Final = """
import asyncio, sys, time
hangs = sys.argv[1]
async def serve(reader, writer):
    try:
        head = (await reader.readuntil(b"\\r\\n\\r\\n")).decode("latin-1").lower()
        path = head.split(" ")[1]
        fields = dict(line.split(": ", 1) for line in head.split("\\r\\n")[1:-2])
        await reader.readexactly(int(fields["content-length"]))
        print(path, fields["webhook-id"], time.monotonic(), flush=True)
        if path == hangs:
            await asyncio.sleep(600)
        writer.write(b"HTTP/1.1 204 OK\\r\\nconnection: close\\r\\n\\r\\n")
        await writer.drain()
    finally:
        writer.close()
async def main():
    number = int(sys.argv[2])
    servers = [await asyncio.start_server(serve, "127.0.0.1", 0, backlog=512) for _ in range(number)]
    print(*(server.sockets[0].getsockname()[1] for server in servers), flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))
asyncio.run(main())
"""


@dataclass(frozen=True, slots=True)
class Rig:
    """A database, and the doorbell of a service worker that delivers from it."""

    sessions: sessionmaker[Session]
    ring: Callable[[], object]


@dataclass
class Receivers:
    """A process with a server and a path for each endpoint; records the first arrival of each event."""

    ports: Sequence[int]
    arrived: dict[str, float] = field(default_factory=dict)


@contextmanager
def receiving(*, hangs: str = "") -> Iterator[Receivers]:
    """Run receivers for the block; the one at this path never responds."""
    with figures.process([sys.executable, "-c", _RECEIVER, hangs, str(_NUM_ENDPOINTS)]) as (_, lines):
        receivers = Receivers([int(port) for port in lines.readline().split()])

        def read() -> None:
            for line in lines:
                path, event_id, at = line.split()
                receivers.arrived.setdefault(f"{path} {event_id}", float(at))

        threading.Thread(target=read, daemon=True).start()
        yield receivers


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the figures, and store them as JSON if asked; exit 1 on a missed goal."""
    parser = argparse.ArgumentParser(prog="python -m bench.webhooks", description=__doc__)
    parser.add_argument("--events", type=int, default=3000)
    figures.run(parser, _measure, arguments)


def _measure(directory: Path, asked: argparse.Namespace) -> list[Figure]:
    num_events: int = asked.events
    with figures.servers(directory, pool_size=4) as servers:
        peers, rates = [_celery_rate(servers.valkey_url, num_events)], []
        with _service(servers) as rig:
            rates += [_delivery_rate(rig, num_events) for _ in range(2)]
            calms = [_p99(rig, num_events // 2, hangs="")]
            hangings = [_p99(rig, num_events // 2, hangs="/0") for _ in range(2)]
            calms.append(_p99(rig, num_events // 2, hangs=""))
        peers.append(_celery_rate(servers.valkey_url, num_events))
    # Each pair was measured in the order A B B A, so that other load on the machine affects both alike.
    peer, rate, calm, hanging = (statistics.mean(each) for each in (peers, rates, calms, hangings))
    return [
        Figure("Celery no-op tasks", peer, "/s"),
        Figure("webhook deliveries, whole exchanges", rate, "/s"),
        Figure("deliveries relative to Celery's no-op", rate / peer, "x", ">= 1"),
        Figure(f"p99 of {_NUM_ENDPOINTS - 1} endpoints, event to arrival", calm * 1000, "ms"),
        Figure("the same while one hangs", hanging * 1000, "ms"),
        Figure("p99 raised by one that hangs", hanging / calm, "x", "<= 1.5"),
    ]


def _celery_rate(url: str, num_tasks: int) -> float:
    """Measure tasks per second from the first one sent to the last one done."""
    sender = celery.Celery(broker=url, set_as_current=False)
    peer = figures.process([sys.executable, "-c", _PEER, url, str(num_tasks + 1)])
    with peer as (_, lines), sender.connection_for_write() as connection:
        queue = connection.default_channel
        sender.send_task("nothing", queue="bench", ignore_result=True)
        until(lambda: queue.client.llen("bench") == 0, seconds=300, every=0.025)
        began = time.monotonic()
        for _ in range(num_tasks):
            sender.send_task("nothing", queue="bench", ignore_result=True)
        lines.readline()
        return num_tasks / (time.monotonic() - began)


def _delivery_rate(rig: Rig, num_events: int) -> float:
    """Measure deliveries per second, first event written to last one recorded."""
    with receiving() as receivers:
        endpoints = _endpoints(rig.sessions, receivers)
        began = time.monotonic()
        for _ in range(num_events // len(endpoints)):
            _write_events(rig.sessions, endpoints)
            rig.ring()
        until(lambda: _num_open(rig.sessions) == 0, seconds=300, every=0.025)
        taken = time.monotonic() - began
    _clear(rig.sessions)
    return num_events / taken


def _p99(rig: Rig, num_events: int, *, hangs: str) -> float:
    """Measure p99 seconds from an event's commit to its arrival at healthy endpoints."""
    with receiving(hangs=hangs) as receivers:
        endpoints = _endpoints(rig.sessions, receivers)
        written: dict[str, float] = {}
        for _ in range(num_events // _NUM_ENDPOINTS):
            at = time.monotonic()
            written |= dict.fromkeys(_write_events(rig.sessions, endpoints), at)
            rig.ring()
            time.sleep(max(0, at + _PERIOD_SECONDS - time.monotonic()))
        wanted = [each for each in written if not each.startswith("/0 ")]
        until(lambda: all(each in receivers.arrived for each in wanted), seconds=300, every=0.025)
        waits = [receivers.arrived[each] - written[each] for each in wanted]
    _clear(rig.sessions)
    return statistics.quantiles(waits, n=100)[98]


@contextmanager
def _service(servers: Servers) -> Iterator[Rig]:
    """Run a service worker for the block, once it delivers."""
    assert _SETTINGS.encryption_key is not None  # noqa: S101  # there is one
    sessions = servers.sessions
    sender = make_app(BrokerSettings(url=SecretStr(servers.valkey_url)))
    rig = Rig(sessions, partial(doorbell.ring, sender, doorbell.EVENTS))
    with figures.service_worker(
        servers,
        LONGBATCH_WEBHOOKS__ENCRYPTION_KEY=_SETTINGS.encryption_key.get_secret_value(),
        LONGBATCH_WEBHOOKS__ALLOWED_HOSTS='["127.0.0.1"]',
    ):
        with receiving() as receivers:
            _write_events(sessions, _endpoints(sessions, receivers))
            until(lambda: _num_open(sessions) == 0, seconds=300, every=0.025)
        _clear(sessions)
        yield rig


_SETTINGS: Final = WebhookSettings(encryption_key=SecretStr(new_key()), allowed_hosts=("127.0.0.1",))


def _endpoints(sessions: sessionmaker[Session], receivers: Receivers) -> list[WebhookEndpoint]:
    vault = Vault.of(_SETTINGS)
    assert vault is not None  # noqa: S101  # there is a key
    with transaction(sessions) as session:
        return [
            endpoints.create(
                session,
                EndpointSpec(url=f"http://127.0.0.1:{port}/{number}"),
                tenant_id=DEFAULT_TENANT,
                vault=vault,
                secret=None,
                max_endpoints=_NUM_ENDPOINTS,
            )[0]
            for number, port in enumerate(receivers.ports)
        ]


def _write_events(sessions: sessionmaker[Session], endpoints: Sequence[WebhookEndpoint]) -> list[str]:
    """Commit an event for each endpoint, and return `path id` of each."""
    ids = [uuid7() for _ in endpoints]
    printed = [f"evt_{each.hex}" for each in ids]
    events = [
        {
            "id": event_id,
            "tenant_id": DEFAULT_TENANT,
            "job_id": uuid7(),
            "type": "job.completed",
            "payload": {"id": name, "object": "event", "type": "job.completed", "data": {"id": "job_1"}},
        }
        for event_id, name in zip(ids, printed, strict=True)
    ]
    with transaction(sessions) as session:
        session.execute(insert(WebhookEvent), events)
        fanout.insert_dispatches(session, zip(ids, map(fanout.of_endpoint, endpoints), strict=True))
    return [f"/{number} {name}" for number, name in enumerate(printed)]


def _num_open(sessions: sessionmaker[Session]) -> int:
    with sessions() as session:
        query = select(func.count()).where(WebhookDispatch.next_attempt_at.is_not(None))
        return session.scalar(query) or 0


def _clear(sessions: sessionmaker[Session]) -> None:
    with transaction(sessions) as session:
        for table in ("webhook_events", "webhook_endpoints", "webhook_breakers"):
            session.execute(text(f"DELETE FROM {table}"))  # noqa: S608  # TRUNCATE would block claims


if __name__ == "__main__":
    main()
