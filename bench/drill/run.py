"""One drill: load on a site whose clocks are wrong; later its machines part at random; then it is judged."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any, Final

from bench.drill.hosts import HUB, Network
from bench.drill.site import LEASE_S, NAMES, POSTGRES, PROGRAMS, Site, site
from bench.soak import receiver
from bench.soak.caller import Caller, RefusedError, Repeats
from bench.soak.checker import Checker
from bench.soak.journal import Journal
from bench.soak.judged import JudgedReport
from bench.soak.load import ENDPOINT, HOOK, Load
from bench.soak.stacks import subscribe
from jobs import telemetry

# Ends of runs that no fault explains.
_UNDISTURBED: Final = frozenset({"completed", "cancelled", "released", "preempted", "yielded"})
_LOOK_EVERY_S: Final = 10
_NAMED: Final = 50


@dataclass(frozen=True, slots=True)
class Plan:
    """How long the drill takes.

    Attributes:
        skewed_s: clocks are wrong, and nothing else is.
        parting_s: then machines part.
        drain_s: how long to wait at the end for what is under way.
    """

    seed: int
    skewed_s: float = 60
    parting_s: float = 240
    drain_s: float = 600
    rate: float = 1.5


@dataclass
class Report(JudgedReport):
    """What a drill found.

    Attributes:
        skewed_runs: how runs ended while only the clocks were wrong.
        partings: how often each happened.
        server_errors: what the APIs logged of requests that they answered with 500, which no parting causes.
    """

    plan: Plan
    skewed_runs: Counter[str] = field(default_factory=Counter)
    partings: Counter[str] = field(default_factory=Counter)
    requests: dict[str, int] = field(default_factory=dict)
    server_errors: list[str] = field(default_factory=list)

    @property
    def disturbed(self) -> dict[str, int]:
        """Runs that ended otherwise than by themselves while only the clocks were wrong."""
        return {outcome: num for outcome, num in self.skewed_runs.items() if outcome not in _UNDISTURBED}

    @property
    def is_good(self) -> bool:
        """True if nothing was lost, doubled or disturbed by a clock, and no API failed."""
        return super().is_good and not (self.disturbed or self.server_errors)

    def figures(self) -> dict[str, Any]:
        """Return everything as JSON."""
        return super().figures() | {"disturbed": self.disturbed}


def drill(
    plan: Plan,
    directory: Path,
    network: Network,
    *,
    faketime: Path | None,
    over: threading.Event,
    say: Callable[[str], None],
) -> Report:
    """Run the plan, or until `over` is set, and judge it."""
    report, repeats = Report(plan), Repeats()
    journal, log = Journal(directory / "journal.jsonl"), directory / "webhooks.jsonl"
    secrets: dict[str, str] = {}
    with (
        receiver.receiving(log, secrets, host="") as port,
        site(directory / "site", network, faketime=faketime) as here,
    ):
        hook = f"http://{HUB}:{port}"
        secrets |= {
            HOOK: here.webhook_secret,
            ENDPOINT: subscribe(here.api_urls[0], here.key, hook + ENDPOINT),
        }
        call = partial(Caller, here.api_urls, here.key, repeats, timeout_s=20)
        load = Load(call, journal, hook + HOOK, plan.seed, plan.rate)
        checker = Checker(call())
        with load.running():
            say("clocks are wrong, and the network is whole")
            _look_for(plan.skewed_s, checker, journal, over)
            report.skewed_runs = Counter(each for runs in checker.seen.runs.values() for each in runs)
            say(f"so far {dict(report.skewed_runs)}; now machines part")
            _part(plan, here, report, over, say, lambda: checker.look(journal.read()))
        say("the network is whole again; waiting for what is under way")
        report.drain(checker, load, log, drain_s=plan.drain_s)
        report.repeats, report.requests = repeats.counted, load.counted
        report.server_errors = _server_errors(directory / "site" / "logs")
    journal.close()
    return report


def _server_errors(logs: Path) -> list[str]:
    found = chain.from_iterable(each.read_text().splitlines() for each in sorted(logs.glob("api-*.log")))
    return [line for line in found if telemetry.REQUEST_FAILED in line][:_NAMED]


def _look(checker: Checker, journal: Journal) -> None:
    checker.look(journal.read())
    checker.read_usage()


def _look_for(seconds: float, checker: Checker, journal: Journal, over: threading.Event) -> None:
    """Look now and then for so long, and once more."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and not over.wait(_LOOK_EVERY_S):
        _look(checker, journal)


def _part(
    plan: Plan,
    here: Site,
    report: Report,
    over: threading.Event,
    say: Callable[[str], None],
    look: Callable[[], None],
) -> None:
    """Part machines one after another; some stay apart for longer than a lease."""
    random = Random(f"{plan.seed} partings")  # noqa: S311  # repeatable
    network, until = here.network, time.monotonic() + plan.parting_s
    while time.monotonic() < until and not over.is_set():
        kind = random.choice(("cut", "cut", "deafen", "lose") if network.nft else ("cut",))
        name = random.choice([*PROGRAMS] if kind == "deafen" else NAMES)
        seconds = random.uniform(3, 2.5 * LEASE_S)
        say(f"{kind} {name} for {seconds:.0f} s")
        report.partings[f"{kind} {name}"] += 1
        if kind == "cut":
            network.cut(name)
        elif kind == "deafen":
            network.deafen(POSTGRES, name)
        else:
            network.lose(name, 10)
        over.wait(seconds)
        network.mend(name)
        network.hear(POSTGRES if kind == "deafen" else name)
        over.wait(random.uniform(2, 15))
        try:
            look()
        except RefusedError as error:
            report.refused.append(str(error))
