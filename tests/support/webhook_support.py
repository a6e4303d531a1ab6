"""What tests of webhooks need: settings, jobs that end, and a receiver that answers as it is told."""

import asyncio
import json
import random
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any, ParamSpec, TypeVar
from uuid import UUID

import uvloop
from pydantic import SecretStr
from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session, sessionmaker

from api_server import WEBHOOK_SECRET
from jobs.database import database_now, transaction
from jobs.models import (
    DEFAULT_TENANT,
    Job,
    Reservation,
    WebhookBreaker,
    WebhookDelivery,
    WebhookDestination,
    WebhookDispatch,
    WebhookEndpoint,
)
from jobs.sealing.keys import new_key
from jobs.settings import WebhookSettings
from jobs.states import JobState
from jobs.webhooks import claims, endpoints, results
from jobs.webhooks.claims import ClaimedDispatch
from jobs.webhooks.endpoints import EndpointSpec
from jobs.webhooks.fairness import Slots
from jobs.webhooks.vault import Vault
from support import eventually, job_in
from worker.webhooks import delivery
from worker.webhooks import exchange as transport
from worker.webhooks.delivery import Deliverer

P = ParamSpec("P")
T = TypeVar("T")

HOSTS = ("localhost", "127.0.0.1")
RANDOM = random.SystemRandom()
WEBHOOKS = WebhookSettings(
    secret=SecretStr(WEBHOOK_SECRET),
    encryption_key=SecretStr(new_key()),
    allowed_hosts=HOSTS,
    deadline_seconds=3,
)


def awaited(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """The function for callers without an event loop; it runs in one of the kind that deliveries run in."""

    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(function(*args, **kwargs))

    return run


exchange = awaited(transport.exchange)
post = awaited(transport.post)
send = awaited(delivery.send)


def vault() -> Vault:
    made = Vault.of(WEBHOOKS)
    assert made is not None
    return made


@dataclass(frozen=True, slots=True)
class Seen:
    """A request that reached a receiver."""

    path: str
    body: bytes
    headers: dict[str, str]

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def event(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found


# What a receiver does with a request once it is written down.
Answer = Callable[[BaseHTTPRequestHandler, Seen], None]


def status(code: int, **headers: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler, _: Seen) -> None:
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("content-length", "0")
        handler.end_headers()

    return answer


OK = status(204)


@dataclass
class Receiver:
    """A server on loopback; `answers` chooses by path what happens, else 204."""

    port: int = 0
    seen: list[Seen] = field(default_factory=list)
    answers: dict[str, Answer] = field(default_factory=dict)
    in_flight: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    most_in_flight: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    lock: Lock = field(default_factory=Lock)

    def url(self, path: str = "/hook", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    def at(self, path: str) -> list[Seen]:
        return [each for each in self.seen if each.path == path]


def connections(listener: socket.socket) -> Iterator[socket.socket]:
    """Whoever connects, until the listener is shut down."""
    while True:
        try:
            connected, _ = listener.accept()
        except OSError:
            return
        with connected:
            yield connected


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver for the block."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            seen = Seen(self.path, body, headers)
            with receiver.lock:
                receiver.seen.append(seen)
                receiver.in_flight[self.path] += 1
                most = max(receiver.most_in_flight[self.path], receiver.in_flight[self.path])
                receiver.most_in_flight[self.path] = most
            try:
                receiver.answers.get(self.path, OK)(self, seen)
            except OSError:
                pass
            finally:
                with receiver.lock:
                    receiver.in_flight[self.path] -= 1

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 256
        daemon_threads = True

    server = Server(("127.0.0.1", 0), Handler)
    receiver.port = server.server_port
    thread = Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def finish(sessions: sessionmaker[Session], state: JobState = JobState.COMPLETED, **fields: object) -> Job:
    """A job that has just ended."""
    with transaction(sessions) as session:
        job = job_in(session, state, **fields)
        session.execute(delete(Reservation))  # as if the engine had confirmed the end
        return job


def add_endpoint(
    sessions: sessionmaker[Session],
    url: str,
    **fields: Any,  # noqa: ANN401  # named by the caller
) -> tuple[WebhookEndpoint, str]:
    """An endpoint of the default tenant, and its secret."""
    with transaction(sessions) as session:
        spec = EndpointSpec(url=url, **fields)
        return endpoints.create(
            session, spec, tenant_id=DEFAULT_TENANT, vault=vault(), secret=None, max_endpoints=50
        )


@dataclass(frozen=True, slots=True)
class Ended:
    """An exchange that ended with this status."""

    status: int | None
    error_code: str | None = None
    num_bytes: int = 0
    latency: timedelta = timedelta(milliseconds=1)
    retry_after: timedelta | None = None


def endpoint_now(sessions: sessionmaker[Session], endpoint: WebhookEndpoint) -> WebhookEndpoint:
    with sessions() as session:
        return session.get_one(WebhookEndpoint, endpoint.id)


def deliver_all(sessions: sessionmaker[Session], settings: WebhookSettings = WEBHOOKS) -> int:
    """Everything that is due has been tried; how many tries."""
    total = 0
    while sent := deliver_due(sessions, settings, vault(), limit=100):
        total += sent
    return total


def deliver_due(
    sessions: sessionmaker[Session], settings: WebhookSettings, vault: Vault, *, limit: int = 1
) -> int:
    """Up to so many events that were due have been sent, one after another, and recorded; how many."""
    with transaction(sessions) as session:
        claimed = claims.claim(session, settings, vault, Slots(limit), freed=_all(session))
    at = time.monotonic()
    told = [(due, awaited(delivery.deliver)(due, settings, since=at)) for due in claimed]
    with transaction(sessions) as session:
        results.record(session, told, settings, RANDOM)
    return len(told)


def claim(session: Session, *, limit: int, settings: WebhookSettings = WEBHOOKS) -> list[ClaimedDispatch]:
    """What a process with so many free slots claims."""
    return claims.claim(session, settings, vault(), Slots(limit))


def _all(session: Session) -> Sequence[UUID]:
    """Every destination, as if an exchange of each had just ended."""
    return session.scalars(select(WebhookDestination.id)).all()


def dispatches(sessions: sessionmaker[Session]) -> list[WebhookDispatch]:
    with sessions() as session:
        return list(session.scalars(select(WebhookDispatch).order_by(WebhookDispatch.id)))


def dispatch_states(sessions: sessionmaker[Session]) -> list[str]:
    return sorted(each.state for each in dispatches(sessions))


def tries(sessions: sessionmaker[Session]) -> list[WebhookDelivery]:
    with sessions() as session:
        return list(session.scalars(select(WebhookDelivery).order_by(WebhookDelivery.id)))


def breakers(sessions: sessionmaker[Session]) -> list[WebhookBreaker]:
    with sessions() as session:
        return list(session.scalars(select(WebhookBreaker)))


def make_due(sessions: sessionmaker[Session]) -> None:
    """What waits, or was taken by a sender that is gone, is due now; pauses are over."""
    with transaction(sessions) as session:
        now = database_now(session) - timedelta(seconds=1)
        waiting = WebhookDispatch.next_attempt_at.is_not(None)
        session.execute(update(WebhookDispatch).where(waiting).values(next_attempt_at=now, is_noticed=False))
        session.execute(update(WebhookBreaker).values(paused_until=None))


def seconds_until_next(sessions: sessionmaker[Session]) -> float:
    """How long the only dispatch waits from now on."""
    (only,) = dispatches(sessions)
    assert only.next_attempt_at is not None
    with sessions() as session:
        return (only.next_attempt_at - database_now(session)).total_seconds()


def run_until(deliverer: Deliverer, condition: Callable[[], bool]) -> None:
    """Run rounds of a deliverer until a condition holds."""

    def look() -> bool:
        deliverer.run_once()
        return condition()

    eventually(look)
