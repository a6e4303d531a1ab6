"""Receivers that misbehave, and processes killed at random: every event arrives, under one id, with one body.

`make crashes` runs it with 2,000 events; `make test` with fewer.
"""

import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Event, Lock

import httpx2
import psycopg
import pytest
from standardwebhooks import Webhook

from cli.stack.options import StackOptions
from cli.stack.ready import API, INFERENCE_WORKER, REDIS, SERVICE_WORKER, TRITON
from cli.stack.servers.engine_options import EngineOptions
from cli.stack.stack import Stack
from jobs.prompts.tokenizer_files import tokenizer_directory
from support import NO_CERTIFICATES, eventually
from system_support import running_stack
from webhook_support import Receiver, Seen, receiving, status

IS_PROOF = os.environ.get("LONGBATCH_PROVE") == "1"
NUM_EVENTS = 2000 if IS_PROOF else 120
NUM_KILLS = 40 if IS_PROOF else 5
SEED = int(os.environ.get("LONGBATCH_SEED", "20261121"))

pytestmark = pytest.mark.timeout(1800 if IS_PROOF else 240)

_BIG = b"x" * 2**20


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    options = StackOptions(
        directory=tmp_path / "stack",
        engine=EngineOptions(tokenizer_dir=tokenizer_directory(None)),
        environment={name: value for name, value in os.environ.items() if not name.startswith("LONGBATCH_P")}
        | {
            "LONGBATCH_WEBHOOKS__ALLOWED_HOSTS": '["127.0.0.1"]',
            "LONGBATCH_WEBHOOKS__DEADLINE_SECONDS": "1",
            "LONGBATCH_WEBHOOKS__BREAKER_SECONDS": "0.5",
            "LONGBATCH_API__INLINE_COUNT_CHARS": "100",
        },
    )
    with running_stack(options) as made:
        for unneeded in (INFERENCE_WORKER, TRITON):  # the API waits for an engine only when it starts
            made.hold(unneeded)
        yield made


class Misbehaving:
    """Answers each event wrongly the first time, in a way of the event's own, and well from then on."""

    def __init__(self, webhook: Webhook) -> None:
        self._webhook = webhook
        self.acknowledged: dict[str, int] = defaultdict(int)
        self.hanging = Event()
        self._tried: set[str] = set()
        self._lock = Lock()

    def __call__(self, handler: BaseHTTPRequestHandler, seen: Seen) -> None:
        self._webhook.verify(seen.body, seen.headers)
        with self._lock:
            is_first = seen.id not in self._tried
            self._tried.add(seen.id)
        conduct = int(seen.id[-2:], 16) % 8 if is_first else 0
        if conduct == 1:
            status(500)(handler, seen)
        elif conduct == 2:
            status(302, location=f"http://127.0.0.1:{handler.server.server_port}/elsewhere")(handler, seen)  # type: ignore[attr-defined]
        elif conduct == 3:
            self.hanging.wait(5)
        elif conduct == 4:
            handler.connection.close()
        elif conduct == 5:
            self._endless(handler)
        else:
            if conduct == 6:
                self.hanging.wait(0.7)  # slow, but in time
            with self._lock:
                self.acknowledged[seen.id] += 1
            status(200)(handler, seen)

    def _endless(self, handler: BaseHTTPRequestHandler) -> None:
        """A failure whose body is 100 MB."""
        handler.send_response(503)
        handler.send_header("content-length", str(100 * len(_BIG)))
        handler.end_headers()
        for _ in range(100):
            handler.wfile.write(_BIG)


def execute(stack: Stack, statement: str, *values: object) -> list[tuple[object, ...]]:
    with psycopg.connect(stack.urls.database_url or "", autocommit=True) as connection:
        found = connection.execute(statement, values)
        return list(found) if found.description else []


def submit(stack: Stack, urls: list[str]) -> None:
    """Jobs that tell these URLs, then all cancelled; the API may be away in between."""
    headers = {"Authorization": f"Bearer {stack.urls.api_key}"}
    with httpx2.Client(
        base_url=stack.urls.api_url or "",
        headers=headers,
        timeout=20,
        trust_env=False,
        verify=NO_CERTIFICATES,
    ) as http:
        for number, url in enumerate(urls):
            sent = {"input": f"text {number}", "webhook_url": url}

            def accepted(sent: dict[str, str] = sent, key: str = f"job-{number}") -> str | None:
                with suppress(httpx2.TransportError):
                    answer = http.post("/v1/jobs", json=sent, headers={"Idempotency-Key": key})
                    return str(answer.json()["id"]) if answer.status_code == 202 else None
                return None

            job_id = eventually(accepted, interval=0.2)

            def cancelled(path: str = f"/v1/jobs/{job_id}/cancel") -> bool:
                with suppress(httpx2.TransportError):
                    return http.post(path).status_code == 200
                return False

            eventually(cancelled, interval=0.2)


def kill_some(stack: Stack, rng: random.Random, done: Event) -> int:
    """Processes that were killed until all was done, most of them service workers in the middle of a send."""
    killed = 0
    while killed < NUM_KILLS and not done.wait(rng.uniform(0.2, 3)):
        victim = rng.choice([SERVICE_WORKER, SERVICE_WORKER, SERVICE_WORKER, REDIS, API])
        before = stack.pids[victim]
        stack.send(victim, signal.SIGKILL)
        eventually(lambda victim=victim, before=before: stack.pids[victim] not in (before, None))
        killed += 1
    return killed


def test_every_event_arrives_under_one_id_whoever_misbehaves_and_whatever_is_killed(
    stack: Stack,
) -> None:
    rng = random.Random(SEED)  # noqa: S311  # repeatable
    done = Event()
    with receiving() as receiver, ThreadPoolExecutor(2) as pool:
        misbehaving = Misbehaving(Webhook(stack.webhook_secret))
        paths = [f"/hook/{number % 4}" for number in range(NUM_EVENTS)]
        receiver.answers |= dict.fromkeys(paths, misbehaving)
        submitting = pool.submit(submit, stack, [receiver.url(path) for path in paths])
        killing = pool.submit(kill_some, stack, rng, done)
        submitting.result(timeout=1200)
        last_shift = time.monotonic()

        def all_delivered() -> bool:
            nonlocal last_shift
            if time.monotonic() - last_shift > 2:
                last_shift = time.monotonic()
                shift_time(stack)
            return killing.done() and len(misbehaving.acknowledged) >= NUM_EVENTS

        eventually(all_delivered, timeout=1200, interval=0.25)
        done.set()
        num_killed = killing.result(timeout=60)
        eventually(lambda: open_dispatches(stack) == 0, interval=0.25)
        misbehaving.hanging.set()
        check(stack, receiver, misbehaving)
    again = sum(misbehaving.acknowledged.values()) - len(misbehaving.acknowledged)
    print(f"{NUM_EVENTS} events, {num_killed} kills, {len(receiver.seen)} requests, {again} told twice")  # noqa: T201  # the figures of the proof


def shift_time(stack: Stack) -> None:
    """As if hours had passed: what waits for its next try is due."""
    execute(stack, "UPDATE webhook_dispatches SET next_attempt_at = now() WHERE state = 'pending'")
    execute(stack, "UPDATE webhook_breakers SET paused_until = NULL")


def open_dispatches(stack: Stack) -> int:
    found = execute(stack, "SELECT count(*) FROM webhook_dispatches WHERE state IN ('pending', 'sending')")
    return int(str(found[0][0]))


def check(stack: Stack, receiver: Receiver, misbehaving: Misbehaving) -> None:
    """The receiver's history and the database tell the same story."""
    rows = execute(
        stack,
        "SELECT 'evt_' || replace(e.id::text, '-', ''), d.state, j.state FROM webhook_events e"
        " JOIN webhook_dispatches d ON d.event_id = e.id JOIN jobs j ON j.id = e.job_id",
    )
    stored = {str(event_id) for event_id, _, _ in rows}
    assert len(rows) == len(stored) == NUM_EVENTS
    assert {(state, job) for _, state, job in rows} == {("delivered", "cancelled")}
    assert misbehaving.acknowledged.keys() == stored, "told: all that happened and nothing else"
    bodies = defaultdict(set)
    for seen in receiver.seen:
        bodies[seen.id].add(seen.body)
    assert {len(each) for each in bodies.values()} == {1}, "one body for each id"
    assert receiver.at("/elsewhere") == []
    assert {seen.event["id"] for seen in receiver.seen} == stored
