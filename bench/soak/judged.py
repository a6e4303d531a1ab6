"""What proofs under the soak's load report: the verdict, and what was seen on the way to it."""

import json
import time
from collections import Counter
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.soak import receiver
from bench.soak.caller import RefusedError
from bench.soak.checker import Checker
from bench.soak.load import Load
from bench.soak.verdict import Verdict, judge

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_LOOK_EVERY_S: Final = 2
_NAMED: Final = 50


@dataclass
class JudgedReport:
    """What a proof showed.

    Attributes:
        runs: how they ended.
        jobs: their last states.
        repeats: what the load had to repeat.
        refused: valid requests that were not accepted in the end.
        kept_after_s: how long after the load the last promise was kept.
    """

    plan: "DataclassInstance"
    verdict: Verdict = field(default_factory=Verdict)
    runs: Counter[str] = field(default_factory=Counter)
    jobs: Counter[str] = field(default_factory=Counter)
    objects: Counter[str] = field(default_factory=Counter)
    repeats: dict[str, int] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    kept_after_s: float = 0

    @property
    def is_good(self) -> bool:
        """True if nothing was lost or doubled, and every request was accepted in the end."""
        return self.verdict.is_good and not self.refused

    def figures(self) -> dict[str, Any]:
        """Return everything as JSON."""
        return {each.name: getattr(self, each.name) for each in fields(self)} | {
            "plan": asdict(self.plan),
            "verdict": {name: each[:_NAMED] for name, each in asdict(self.verdict).items()},
            "lost": len(self.verdict.lost),
            "doubled": len(self.verdict.doubled),
            "is_good": self.is_good,
        }

    def drain(self, checker: Checker, load: Load, log: Path, *, drain_s: float) -> None:
        """Look until all that was promised is kept, or for so long."""
        began = time.monotonic()
        while True:
            try:
                checker.look(load.journal.read())
                checker.read_usage()
            except RefusedError as error:
                load.faults.append(f"the checker was refused: {error}")
            self.verdict = judge(load.journal.read(), checker.seen, receiver.read(log), chats=load.chats)
            self.kept_after_s = round(time.monotonic() - began, 1)
            if self.verdict.is_good or self.kept_after_s > drain_s:
                break
            time.sleep(_LOOK_EVERY_S)
        self.runs = Counter(each for runs in checker.seen.runs.values() for each in runs)
        self.jobs = Counter(end.state for end in checker.seen.jobs.values())
        self.objects = Counter(end.state for end in checker.seen.objects.values())
        self.refused += load.faults


def say(words: str) -> None:
    """Print the time and these words."""
    print(f"{time.strftime('%H:%M:%S')} {words}", flush=True)  # noqa: T201


def conclude(report: JudgedReport, **figures: object) -> None:
    """Print the figures.

    Raises:
        SystemExit: 1 if the report is not good.
    """
    print(json.dumps(report.figures() | figures, indent=1))  # noqa: T201
    if not report.is_good:
        raise SystemExit(1)
