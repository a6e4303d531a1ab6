"""One run: a whole stack under load and faults, calm for its last part, then judged."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path

from bench.soak import killer, receiver
from bench.soak.caller import Caller, RefusedError, Repeats
from bench.soak.checker import Checker
from bench.soak.curves import Curves
from bench.soak.journal import Journal
from bench.soak.killer import Killer
from bench.soak.load import ENDPOINT, HOOK, Load
from bench.soak.stacks import LEASE_S, options, subscribe
from bench.soak.verdict import Verdict, judge
from cli.stack.options import StackOptions
from cli.stack.stack import Stack
from cli.stack.supervised import Backoff

_BACKOFF = Backoff(first=timedelta(seconds=0.5), ceiling=timedelta(seconds=2))


@dataclass(frozen=True, slots=True)
class Plan:
    """How long and how hard to run.

    Attributes:
        seconds: of load.
        faults_share: of that time, in which there are faults; growth of processes is measured in the rest.
        fault_every_s: mean time between two faults.
        rate: 1 is about 1.2 jobs a second.
        retention_s: the server prunes what ended longer ago; tables are steady from then on.
        look_every_s: between two looks of the checker.
        drain_s: how long to wait at the end for what is under way.
    """

    seed: int
    seconds: float
    faults_share: float = 0.6
    fault_every_s: float = 25
    rate: float = 1
    retention_s: float = 900
    look_every_s: float = 60
    drain_s: float = 900


@dataclass
class Report:
    """What a run did and found.

    Attributes:
        seconds: of load.
        calm_from_s: when the faults ended.
        faults: each with its moment, in seconds of the run.
        trouble: what kept the run itself from going on.
        late_s: how long after the load the last promise was kept.
    """

    plan: Plan
    journal: Journal
    load: Load
    checker: Checker
    curves: Curves
    repeats: Repeats
    log: Path
    seconds: float = 0
    calm_from_s: float = 0
    faults: list[tuple[float, str]] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)
    verdict: Verdict = field(default_factory=Verdict)
    late_s: float = 0

    @property
    def counted(self) -> Counter[str]:
        """How often there was each fault."""
        return Counter(name for _, name in self.faults)


def soak(
    plan: Plan, directory: Path, *, over: threading.Event, say: Callable[[str], None] = lambda _: None
) -> Report:
    """Run the plan in this empty directory, or until `over` is set, and judge it.

    Raises:
        LongbatchError: the stack did not start.
    """
    directory.mkdir(parents=True, exist_ok=True)
    journal, log, repeats = Journal(directory / "journal.jsonl"), directory / "webhooks.jsonl", Repeats()
    secrets: dict[str, str] = {}
    stack = Stack(_options(plan, directory), backoff=_BACKOFF)
    try:
        with receiver.receiving(log, secrets) as port, stack:
            call = partial(Caller, [stack.urls.api_url or ""], stack.urls.api_key or "", repeats)
            secrets[HOOK] = stack.webhook_secret
            secrets[ENDPOINT] = subscribe(
                stack.urls.api_url or "", stack.urls.api_key or "", f"http://127.0.0.1:{port}{ENDPOINT}"
            )
            load = Load(call, journal, f"http://127.0.0.1:{port}{HOOK}", plan.seed, plan.rate)
            report = Report(plan, journal, load, Checker(call()), Curves(), repeats, log)
            _run(report, stack, over, say)
            say("the load is over; waiting for what is under way")
            _drain(report)
            return report
    finally:
        journal.close()
        stack.remove_data()


def _options(plan: Plan, directory: Path) -> StackOptions:
    days = str(plan.retention_s / timedelta(days=1).total_seconds())
    return options(
        directory / "stack",
        {
            "LONGBATCH_JOBS__RETENTION_DAYS": days,
            "LONGBATCH_JOBS__IDEMPOTENCY_HOURS": str(plan.retention_s / 3600),
            "LONGBATCH_FILES__RETENTION_DAYS": days,
            "LONGBATCH_BATCHES__RETENTION_DAYS": days,
            "LONGBATCH_DOCUMENTS__RETENTION_DAYS": days,
            "LONGBATCH_MAINTENANCE__PRUNE_SECONDS": "60",
        },
    )


def _run(report: Report, stack: Stack, over: threading.Event, say: Callable[[str], None]) -> None:
    """Send the load, do faults for the first part of the time, look again and again."""
    plan, curves = report.plan, report.curves
    calm, sampled = threading.Event(), threading.Event()
    faults = Killer(stack, seed=plan.seed, mean_s=plan.fault_every_s, freeze_s=LEASE_S + 3)
    began = time.monotonic()
    origin = time.time() - (began - curves.began)  # of the curves
    with (
        _thread(curves.sample_until, sampled, sampled, stack),
        report.load.running(),
        _thread(killer.attempt, calm, faults, calm, say, report.trouble),
    ):
        while (passed := time.monotonic() - began) < plan.seconds and not over.wait(
            min(plan.look_every_s, plan.seconds - passed)
        ):
            if not calm.is_set() and time.monotonic() - began >= plan.faults_share * plan.seconds:
                calm.set()
                report.calm_from_s = time.monotonic() - curves.began
                say("calm from now on")
            _look(report)
    report.seconds = time.monotonic() - began
    report.calm_from_s = report.calm_from_s or report.seconds
    report.faults = [(at - origin, name) for at, name in faults.log]


def _look(report: Report) -> None:
    try:
        report.checker.look(report.journal.read())
        report.checker.read_usage()
    except RefusedError as error:
        report.trouble.append(f"the checker was refused: {error}")


def _drain(report: Report) -> None:
    """Look until all that was promised is kept, or the time is up."""
    began = time.monotonic()
    while True:
        _look(report)
        report.verdict = judge(
            report.journal.read(),
            report.checker.seen,
            receiver.read(report.log),
            chats=report.load.chats,
        )
        report.late_s = time.monotonic() - began
        if report.verdict.is_good or report.late_s > report.plan.drain_s:
            return
        time.sleep(min(5, report.plan.look_every_s))


@contextmanager
def _thread(work: Callable[..., None], over: threading.Event, *given: object) -> Iterator[None]:
    """Run the work in a thread for the block; it ends soon after `over` is set."""
    thread = threading.Thread(target=work, args=given, name=f"soak-{work.__name__}")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
