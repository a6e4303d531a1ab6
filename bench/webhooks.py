"""`python -m bench.webhooks`: webhook deliveries against Celery's own no-op rate, and beside one that hangs.

Postgres, Redis and receivers run here on random ports; the deliverer is the service worker's own. The peer is
a Celery worker of one process with a thread pool that runs a task which does nothing.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import celery
from pydantic import SecretStr
from rich.console import Console
from rich.table import Table
from sqlalchemy import func, select, text
from sqlalchemy.orm import Session, sessionmaker

from cli.stack.postgres import EmbeddedPostgres
from cli.stack.valkey import EmbeddedValkey
from jobs import database, schema, webhook_dispatches, webhook_endpoints
from jobs.database import transaction
from jobs.ids import uuid7
from jobs.models import DEFAULT_TENANT, WebhookDispatch, WebhookEndpoint, WebhookEvent
from jobs.settings import DatabaseSettings, WebhookSettings
from jobs.webhook_endpoints import EndpointSpec
from jobs.webhook_vault import Vault, new_key
from worker.deliver import Deliverer
from worker.loops import Loop

_NUM_ENDPOINTS: Final = 20
_PEER: Final = """
import sys, threading, celery
app = celery.Celery(broker=sys.argv[1], set_as_current=False)
app.conf.update(task_ignore_result=True, worker_enable_remote_control=False, worker_hijack_root_logger=False)
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


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table; `goal` is empty where nothing is asked, `met` None then."""

    name: str
    measured: float
    unit: str
    goal: str = ""
    met: bool | None = None


@dataclass
class Receivers:
    """A server with a path for each endpoint; what arrives is stamped."""

    port: int = 0
    arrived: list[tuple[str, str, float]] = field(default_factory=list)
    hangs: set[str] = field(default_factory=set)
    release: threading.Event = field(default_factory=threading.Event)


@contextmanager
def receiving() -> Iterator[Receivers]:
    """Receivers for the block."""
    receivers = Receivers()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            receivers.arrived.append((self.path, self.headers["webhook-id"], time.monotonic()))
            if self.path in receivers.hangs:
                receivers.release.wait(60)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing is printed."""

    class Server(ThreadingHTTPServer):
        request_queue_size = 256
        daemon_threads = True

    server = Server(("127.0.0.1", 0), Handler)
    receivers.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield receivers
    finally:
        receivers.release.set()
        server.shutdown()
        server.server_close()


def main(arguments: Sequence[str] | None = None) -> None:
    """The figures are printed, and kept as JSON where asked."""
    parser = argparse.ArgumentParser(prog="python -m bench.webhooks", description=__doc__)
    parser.add_argument("--events", type=int, default=3000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as directory:
        figures = _measure(Path(directory), options.events)
    table = Table("figure", "measured", "goal", "met")
    for figure in figures:
        met = {None: "", True: "yes", False: "no"}[figure.met]
        table.add_row(figure.name, f"{figure.measured:,.2f} {figure.unit}", figure.goal, met)
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps([asdict(figure) for figure in figures], indent=2) + "\n")


def _measure(directory: Path, num_events: int) -> list[Figure]:
    postgres = EmbeddedPostgres(directory / "postgres")
    valkey = EmbeddedValkey(directory / "valkey")
    postgres.start()
    valkey.start()
    engine = database.make_engine(DatabaseSettings(url=SecretStr(postgres.url)), pool_size=4)
    try:
        schema.upgrade(engine)
        sessions = database.make_sessions(engine)
        peer = _celery_rate(valkey.url, num_events)
        with receiving() as receivers:
            rate = _delivery_rate(sessions, receivers, num_events)
        calm = _p99(sessions, hanging=False, num_events=num_events)
        beside = _p99(sessions, hanging=True, num_events=num_events)
    finally:
        engine.dispose()
        valkey.stop()
        postgres.remove()
    return [
        Figure("Celery no-op tasks", peer, "/s"),
        Figure("webhook deliveries, whole exchanges", rate, "/s"),
        Figure("deliveries against Celery's no-op", rate / peer, "x", ">= 1.0", rate >= peer),
        Figure(f"p99 of {_NUM_ENDPOINTS - 1} endpoints, event to arrival", calm * 1000, "ms"),
        Figure("the same beside one that hangs", beside * 1000, "ms"),
        Figure("p99 raised by one that hangs", beside / calm, "x", "<= 1.5", beside <= 1.5 * calm),
    ]


def _celery_rate(url: str, num_tasks: int) -> float:
    """Tasks a second from the first one sent to the last one done, the worker waiting."""
    sender = celery.Celery(broker=url, set_as_current=False)
    command = [sys.executable, "-c", _PEER, url, str(num_tasks + 1)]
    environment = dict(os.environ)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as worker:
        try:
            assert worker.stdout is not None  # noqa: S101  # a pipe was asked for
            with sender.connection_for_write() as connection:
                queue = connection.default_channel
                sender.send_task("nothing", queue="bench", ignore_result=True)
                _wait(lambda: queue.client.llen("bench") == 0)
                began = time.monotonic()
                for _ in range(num_tasks):
                    sender.send_task("nothing", queue="bench", ignore_result=True)
                worker.stdout.readline()
                return num_tasks / (time.monotonic() - began)
        finally:
            worker.kill()


def _delivery_rate(sessions: sessionmaker[Session], receivers: Receivers, num_events: int) -> float:
    """Deliveries a second from the first event written to the last one recorded, over all endpoints."""
    endpoints = _endpoints(sessions, receivers)
    with _delivering(sessions) as wake, ThreadPoolExecutor(1) as pool:
        began = time.monotonic()
        writing = pool.submit(_write, sessions, endpoints, num_events, wake)
        writing.result()
        _wait(lambda: _num_open(sessions) == 0)
        taken = time.monotonic() - began
    _clear(sessions)
    return num_events / taken


def _p99(sessions: sessionmaker[Session], *, hanging: bool, num_events: int) -> float:
    """Seconds from an event's commit to its arrival at the endpoints that do not hang, at a steady pace."""
    with receiving() as receivers:
        endpoints = _endpoints(sessions, receivers)
        if hanging:
            receivers.hangs.add("/0")
        written: dict[str, float] = {}
        with _delivering(sessions) as wake:
            for _ in range(min(num_events, 1500) // _NUM_ENDPOINTS):
                at = time.monotonic()
                for event_id in _tell(sessions, endpoints):
                    written[event_id] = at
                wake()
                # A pace that the machine keeps up with: what is measured is waiting, not being overrun.
                time.sleep(max(0, at + 0.25 - time.monotonic()))
            wanted = {event_id for event_id in written if not event_id.startswith("/0 ")}

            def all_arrived() -> bool:
                return len(wanted - {f"{path} {event_id}" for path, event_id, _ in receivers.arrived}) == 0

            _wait(all_arrived)
        _clear(sessions)
        first: dict[str, float] = {}
        for path, event_id, at in receivers.arrived:
            first.setdefault(f"{path} {event_id}", at)
        waits = [first[each] - written[each] for each in wanted]
    return statistics.quantiles(waits, n=100)[98]


@contextmanager
def _delivering(sessions: sessionmaker[Session]) -> Iterator[Callable[[], None]]:
    """What is due is sent by a deliverer in a loop, as in a service worker; yields what wakes it."""
    vault = Vault.of(_SETTINGS)
    assert vault is not None  # noqa: S101  # there is a key
    loops: list[Loop] = []
    deliverer = Deliverer(sessions, _SETTINGS, vault, wake=lambda: loops[0].wake())
    loop = Loop("deliver", deliverer.run_once, interval=0.5)
    loops.append(loop)
    deliverer.start()
    loop.start()
    try:
        yield loop.wake
    finally:
        loop.stop()
        deliverer.stop(within=0.1)


_SETTINGS: Final = WebhookSettings(encryption_key=SecretStr(new_key()), allowed_hosts=("127.0.0.1",))


def _endpoints(sessions: sessionmaker[Session], receivers: Receivers) -> list[WebhookEndpoint]:
    vault = Vault.of(_SETTINGS)
    assert vault is not None  # noqa: S101  # there is a key
    with transaction(sessions) as session:
        return [
            webhook_endpoints.create(
                session,
                EndpointSpec(url=f"http://127.0.0.1:{receivers.port}/{number}"),
                tenant_id=DEFAULT_TENANT,
                vault=vault,
                secret=None,
                max_endpoints=_NUM_ENDPOINTS,
            )[0]
            for number in range(_NUM_ENDPOINTS)
        ]


def _write(
    sessions: sessionmaker[Session],
    endpoints: Sequence[WebhookEndpoint],
    num_events: int,
    wake: Callable[[], None],
) -> None:
    for _ in range(num_events // len(endpoints)):
        _tell(sessions, endpoints)
        wake()


def _tell(sessions: sessionmaker[Session], endpoints: Sequence[WebhookEndpoint]) -> list[str]:
    """An event for each endpoint is committed; `path id` of each."""
    with transaction(sessions) as session:
        told = []
        for number, endpoint in enumerate(endpoints):
            event_id = uuid7()
            printed = f"evt_{event_id.hex}"
            body = {"id": printed, "object": "event", "type": "job.completed", "data": {"id": "job_1"}}
            session.add(
                WebhookEvent(
                    id=event_id,
                    tenant_id=DEFAULT_TENANT,
                    job_id=uuid7(),
                    type="job.completed",
                    payload=body,
                )
            )
            session.flush()
            to = [webhook_dispatches.of_endpoint(endpoint)]
            webhook_dispatches.add(session, webhook_dispatches.rows_for(DEFAULT_TENANT, event_id, to))
            told.append(f"/{number} {printed}")
        return told


def _num_open(sessions: sessionmaker[Session]) -> int:
    with sessions() as session:
        query = select(func.count()).where(WebhookDispatch.state.in_(webhook_dispatches.OPEN))
        return session.scalar(query) or 0


def _clear(sessions: sessionmaker[Session]) -> None:
    with transaction(sessions) as session:
        session.execute(text("TRUNCATE webhook_events, webhook_endpoints, webhook_breakers CASCADE"))


def _wait(is_done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not is_done():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.01)


if __name__ == "__main__":
    main()
