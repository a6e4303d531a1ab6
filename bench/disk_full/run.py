"""One run: load while the disk of a stack has room, has none, and has room again; then it is judged.

The database, the broker, the engine and every process's log are on that disk.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Final

import httpx2
import psycopg

from bench.disk_full.room import Ballast, mount
from bench.soak import receiver
from bench.soak.caller import Caller, Repeats
from bench.soak.checker import Checker
from bench.soak.journal import Journal, Promise
from bench.soak.judged import JudgedReport
from bench.soak.load import ENDPOINT, HOOK, Load, max_tokens_of, text_of
from bench.soak.stacks import options, subscribe
from cli.stack.ready import POSTGRES
from cli.stack.servers.postgres_home import find_home
from cli.stack.stack import Stack
from cli.stack.supervised import Backoff

ROOM, NO_ROOM, NO_LOG, ROOM_AGAIN = "room", "no room", "no room for the log", "room again"
FULL: Final = (NO_ROOM, NO_LOG)
_BACKOFF: Final = Backoff(first=timedelta(seconds=0.5), ceiling=timedelta(seconds=2))
_NEXT_SEGMENT: Final = "SELECT pg_logical_emit_message(false, 'bench', 'x'), pg_switch_wal()"
_SPARE_SEGMENTS: Final = 6
_MAX_SEGMENTS: Final = 200  # of 16 MiB: far more than there are
# What callers of a full server may be told, as (status, code).
_ALLOWED: Final = frozenset({(202, ""), (503, "storage_full"), (503, "unavailable")})


@dataclass(frozen=True, slots=True)
class Plan:
    """How long each part takes.

    Attributes:
        calm_s: of load before the disk is full, and after it has room again.
        full_s: nothing can grow.
        no_log_s: then Postgres cannot even write its log, and is down.
        drain_s: how long to wait at the end for what is under way.
        disk_bytes: of the disk.
    """

    seed: int
    calm_s: float = 30
    full_s: float = 60
    no_log_s: float = 20
    drain_s: float = 600
    rate: float = 3
    disk_bytes: int = 768 * 2**20


@dataclass
class Report(JudgedReport):
    """What callers saw.

    Attributes:
        answers: to submissions, by part of the run and by status and code.
        reads: statuses of reads, by part of the run.
        faults: what should not be, besides the verdict.
    """

    plan: Plan
    answers: dict[str, Counter[str]] = field(default_factory=dict)
    reads: dict[str, Counter[str]] = field(default_factory=dict)
    errors: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """True if all promises were kept, and callers of a full server were told so."""
        return super().is_good and not self.faults


@dataclass
class _Prober:
    """A caller that submits one job after the other, each under one key until it is accepted, and reads."""

    url: str
    key: str
    journal: Journal
    report: Report
    part: str = ROOM

    def run(self, over: threading.Event) -> None:
        """Send until `over` is set."""
        headers = {"Authorization": f"Bearer {self.key}"}
        number = 0
        with httpx2.Client(base_url=self.url, headers=headers, trust_env=False, timeout=60) as http:
            while not over.wait(0.5):
                part = self.part
                status, code, made = self._submit(http, number)
                self.report.answers.setdefault(part, Counter())[f"{status} {code}".strip()] += 1
                if made:
                    name, prompt = f"probe-{number}", f"text {number % 8}"
                    self.journal.add(Promise("job", made, name, prompt=prompt))
                    number += 1
                elif part in FULL and (status, code) not in _ALLOWED:
                    self.report.faults.append(f"{part}: a submission was answered {status} {code}")
                read = http.get("/v1/jobs", params={"limit": 5}).status_code
                self.report.reads.setdefault(part, Counter())[str(read)] += 1
                if part == self.part == NO_ROOM and read != 200:
                    self.report.faults.append(f"{part}: a read was answered {read}")

    def _submit(self, http: httpx2.Client, number: int) -> tuple[int, str, str]:
        name = f"probe-{number}"
        asked = {
            "input": text_of(number % 8),
            "task": "summarize",
            "max_tokens": max_tokens_of(number % 8),
            "custom_id": name,
        }
        answer = http.post("/v1/jobs", json=asked, headers={"Idempotency-Key": name})
        body = answer.json()
        if answer.status_code == 202:
            return 202, "", body["id"]
        return answer.status_code, body["error"]["code"], ""


def run(
    plan: Plan, directory: Path, *, over: threading.Event, say: Callable[[str], None] = lambda _: None
) -> Report:
    """Run the plan in this empty directory, in a process that may mount, or until `over` is set; judge it.

    Raises:
        LongbatchError: the stack did not start.
        OSError: this process may not mount, or Postgres may not use what it mounts.
    """
    disk = directory / "stack"
    disk.mkdir()
    mount(disk, plan.disk_bytes)
    home = disk / POSTGRES
    if find_home(home).directory != home.resolve():
        raise OSError(f"Postgres cannot use {home}")
    report, repeats = Report(plan), Repeats()
    journal, log = Journal(directory / "journal.jsonl"), directory / "webhooks.jsonl"
    secrets: dict[str, str] = {}
    stack = Stack(options(directory / "stack", {}), backoff=_BACKOFF)
    try:
        with receiver.receiving(log, secrets) as port, stack:
            url, key = stack.urls.api_url or "", stack.urls.api_key or ""
            call = partial(Caller, [url], key, repeats)
            secrets |= {
                HOOK: stack.webhook_secret,
                ENDPOINT: subscribe(url, key, f"http://127.0.0.1:{port}{ENDPOINT}"),
            }
            load = Load(call, journal, f"http://127.0.0.1:{port}{HOOK}", plan.seed, plan.rate)
            prober = _Prober(url, key, journal, report)
            checker = Checker(call())
            _send(plan, load, prober, Ballast(disk), stack, over, say)
            say("the load is over; waiting for what is under way")
            report.drain(checker, load, log, drain_s=plan.drain_s)
            report.repeats = repeats.counted
            report.errors = Counter(end.error for end in checker.seen.jobs.values() if end.error)
            if not report.answers.get(NO_ROOM, Counter())["503 storage_full"]:
                report.faults.append("no caller was told that the disk is full")
            if (ready := httpx2.get(f"{url}/health/ready", trust_env=False)).status_code != HTTPStatus.OK:
                report.faults.append(f"not ready at the end: {ready.text}")
    finally:
        journal.close()
        stack.remove_data()
    return report


def _send(
    plan: Plan,
    load: Load,
    prober: _Prober,
    ballast: Ballast,
    stack: Stack,
    over: threading.Event,
    say: Callable[[str], None],
) -> None:
    """Send the load; meanwhile fill the disk, then Postgres' log, then give the room back."""
    ended = threading.Event()
    probing = threading.Thread(target=prober.run, args=(ended,), name="prober")
    probing.start()
    try:
        with load.running():
            over.wait(plan.calm_s)
            _spare_log(stack.urls.database_url or "")
            say(NO_ROOM)
            ballast.fill()
            prober.part = NO_ROOM
            _stay_full(ballast, plan.full_s, over)
            say(NO_LOG)
            prober.part = NO_LOG
            _use_up_log(stack.urls.database_url or "", ballast)
            _stay_full(ballast, plan.no_log_s, over)
            say(ROOM_AGAIN)
            ballast.drop()
            prober.part = ROOM_AGAIN
            over.wait(plan.calm_s)
    finally:
        ended.set()
        probing.join()


def _spare_log(url: str) -> None:
    """Give Postgres segments of its log to spare, as after hours of work, so that rows fail first."""
    with psycopg.connect(url, autocommit=True) as database:
        for _ in range(_SPARE_SEGMENTS):
            database.execute(_NEXT_SEGMENT)
        database.execute("CHECKPOINT")


def _stay_full(ballast: Ballast, seconds: float, over: threading.Event) -> None:
    """Take what Postgres frees meanwhile, too."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and not over.wait(0.2):
        ballast.fill()


def _use_up_log(url: str, ballast: Ballast) -> None:
    """Switch segments of Postgres' log until it has none left, which ends it."""
    try:
        with psycopg.connect(url, autocommit=True, connect_timeout=5) as database:
            for _ in range(_MAX_SEGMENTS):
                ballast.fill()
                database.execute(_NEXT_SEGMENT)
    except psycopg.Error:
        pass
