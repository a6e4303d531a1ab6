"""One failover: mixed load, the primary dies, the standby is promoted; then all promises are looked at."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

from bench.failover.pair import Pair
from bench.soak import receiver
from bench.soak.caller import Caller, RefusedError, Repeats
from bench.soak.checker import Checker
from bench.soak.journal import Journal
from bench.soak.load import ENDPOINT, HOOK, Load, native
from bench.soak.stacks import options, subscribe
from bench.soak.verdict import Verdict, judge
from cli.stack.stack import Stack

_LOOK_EVERY_S: Final = 10
_NAMED: Final = 50


@dataclass(frozen=True, slots=True)
class Plan:
    """How long a failover takes.

    Attributes:
        before_s: load before the primary dies.
        without_s: then there is no primary.
        after_s: load after the standby was promoted.
        drain_s: how long to wait at the end for what is under way.
        rate: 1 is about 1.2 jobs a second.
        is_synchronous: commits wait for the standby. If they do not, it hears nothing of the primary's last
            seconds, so that the judge has something to find.
        apart_s: those seconds.
    """

    seed: int
    before_s: float = 60
    without_s: float = 5
    after_s: float = 60
    drain_s: float = 300
    rate: float = 3
    is_synchronous: bool = True
    apart_s: float = 5


@dataclass
class Report:
    """What a failover showed.

    Attributes:
        promised: objects accepted before the primary died, and in all.
        accepted_again_s: from its death to the first request that was accepted afterwards.
    """

    plan: Plan
    verdict: Verdict = field(default_factory=Verdict)
    promised: tuple[int, int] = (0, 0)
    promoted_s: float = 0
    accepted_again_s: float = 0
    kept_after_s: float = 0
    runs: Counter[str] = field(default_factory=Counter)
    jobs: Counter[str] = field(default_factory=Counter)
    repeats: dict[str, int] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """True if nothing was lost or doubled, and every request was accepted in the end."""
        return self.verdict.is_good and not self.refused

    def figures(self) -> dict[str, Any]:
        """Return everything as JSON."""
        verdict = {name: each[:_NAMED] for name, each in asdict(self.verdict).items()}
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return found | {
            "plan": asdict(self.plan),
            "verdict": verdict,
            "lost": len(self.verdict.lost),
            "doubled": len(self.verdict.doubled),
            "is_good": self.is_good,
        }


def fail_over(plan: Plan, directory: Path, *, say: Callable[[str], None]) -> Report:
    """Run the plan in this empty directory, and judge it.

    Raises:
        LongbatchError: the stack did not start, or the standby was not promoted.
    """
    report, repeats = Report(plan), Repeats()
    journal, log = Journal(directory / "journal.jsonl"), directory / "webhooks.jsonl"
    secrets: dict[str, str] = {}
    pair = Pair(directory / "postgres", is_synchronous=plan.is_synchronous)
    try:
        pair.start()
        chosen = options(directory / "stack", {"LONGBATCH_DATABASE__URL": pair.url})
        with receiver.receiving(log, secrets) as port, Stack(chosen) as stack:
            hook = f"http://127.0.0.1:{port}"
            api_url, key = stack.urls.api_url or "", stack.urls.api_key or ""
            secrets |= {HOOK: stack.webhook_secret, ENDPOINT: subscribe(api_url, key, hook + ENDPOINT)}
            call = partial(Caller, [api_url], key, repeats)
            load = Load(call, journal, hook + HOOK, plan.seed, plan.rate)
            checker = Checker(call())
            with load.running():
                say("load")
                _look_for(plan.before_s, checker, journal)
                _promote(report, pair, load, say)
                _look_for(plan.after_s, checker, journal)
            say("the load is over; waiting for what is under way")
            _drain(report, checker, load, log)
            report.repeats, report.refused = repeats.counted, load.faults
        return report
    finally:
        journal.close()
        pair.remove()


def _promote(report: Report, pair: Pair, load: Load, say: Callable[[str], None]) -> None:
    """Kill the primary in the middle of everything; measure until a request is accepted again."""
    if not report.plan.is_synchronous:
        pair.standby.part()
        say("the standby no longer follows")
        time.sleep(report.plan.apart_s)
    num_before = len(load.journal.read())
    pair.kill_primary()
    began = time.monotonic()
    say(f"the primary is dead; {num_before} objects were accepted")
    time.sleep(report.plan.without_s)
    pair.standby.promote()
    report.promoted_s = round(time.monotonic() - began, 1)
    say("the standby is promoted")
    caller = load.call()
    load.send_one(native, caller, Random(0), f"after-{load.seed}")  # noqa: S311  # repeatable
    caller.close()
    report.accepted_again_s = round(time.monotonic() - began, 1)
    report.promised = (num_before, 0)


def _look_for(seconds: float, checker: Checker, journal: Journal) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, _LOOK_EVERY_S))
        _look(checker, journal)


def _look(checker: Checker, journal: Journal) -> None:
    checker.look(journal.read())
    checker.read_usage()


def _drain(report: Report, checker: Checker, load: Load, log: Path) -> None:
    began = time.monotonic()
    while True:
        try:
            _look(checker, load.journal)
        except RefusedError as error:
            load.faults.append(f"the checker was refused: {error}")
        promises = load.journal.read()
        report.verdict = judge(promises, checker.seen, receiver.read(log), chats=load.chats)
        report.kept_after_s = round(time.monotonic() - began, 1)
        if report.verdict.is_good or report.kept_after_s > report.plan.drain_s:
            break
        time.sleep(2)
    report.promised = (report.promised[0], len(promises))
    report.runs = Counter(each for runs in checker.seen.runs.values() for each in runs)
    report.jobs = Counter(end.state for end in checker.seen.jobs.values())
