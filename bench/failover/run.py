"""One failover: mixed load, the primary dies, the standby is promoted; then all promises are looked at."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

from bench.failover.pair import Pair
from bench.soak import receiver
from bench.soak.caller import Caller, Repeats
from bench.soak.checker import Checker
from bench.soak.journal import Journal
from bench.soak.judged import JudgedReport
from bench.soak.load import ENDPOINT, HOOK, Load, native
from bench.soak.stacks import options, subscribe
from cli.stack.stack import Stack

_LOOK_EVERY_S: Final = 10


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
class Report(JudgedReport):
    """What a failover showed.

    Attributes:
        promised: objects accepted before the primary died, and in all.
        accepted_again_s: from its death to the first request that was accepted afterwards.
    """

    plan: Plan
    promised: tuple[int, int] = (0, 0)
    promoted_s: float = 0
    accepted_again_s: float = 0


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
            report.drain(checker, load, log, drain_s=plan.drain_s)
            report.promised, report.repeats = (report.promised[0], len(journal.read())), repeats.counted
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
