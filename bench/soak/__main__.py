"""`python -m bench.soak`: hours of mixed load and random kills on a stack of its own, and a verdict.

The exit status is 1 if anything was lost, doubled or contradicted itself, or did not stay flat.
"""

import argparse
import json
import os
import secrets
import signal
import tempfile
import threading
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

from bench.soak import receiver
from bench.soak.curves import Growth
from bench.soak.judged import say
from bench.soak.picture import draw
from bench.soak.run import Plan, Report, soak
from jobs import open_files

_MAX_NAMED = 50  # faults of a kind in the report


def main() -> None:
    """Run, print the figures, and write them and the picture."""
    asked = _arguments()
    open_files.raise_limit()
    plan = Plan(seed=asked.seed, seconds=3600 * asked.hours, rate=asked.rate, fault_every_s=asked.fault_every)
    over = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a second one ends at once
        over.set()

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    say(f"seed {plan.seed}, {plan.seconds:.0f} s; ctrl-C ends the load early and judges what there is")
    with tempfile.TemporaryDirectory(prefix="longbatch-soak-") as directory:
        report = soak(plan, Path(directory), over=over, say=say)
        figures = figures_of(report)
    asked.output.mkdir(parents=True, exist_ok=True)
    (asked.output / "soak.json").write_text(json.dumps(figures, indent=1) + "\n")
    _draw(report, asked.output / "soak.png")
    print(json.dumps({name: value for name, value in figures.items() if name != "curves"}, indent=1))  # noqa: T201
    if not figures["is_good"]:
        raise SystemExit(1)


def figures_of(report: Report) -> dict[str, Any]:
    """Collect the figures of a run as JSON."""
    seen, told = report.checker.seen, receiver.read(report.log)
    taken = [each for each in told if 200 <= each.status < 300]
    growths = report.curves.growths(
        # What started last has warmed up then.
        processes_since=report.calm_from_s + 0.15 * (report.seconds - report.calm_from_s),
        tables_since=report.plan.retention_s + 300,
    )
    steep = [each for each in growths if not each.is_flat]
    verdict = {name: each[:_MAX_NAMED] for name, each in asdict(report.verdict).items()}
    cpu_s = report.curves.cpu_s
    return {
        "is_good": report.verdict.is_good and not steep and not report.trouble and not report.load.faults,
        "seed": report.plan.seed,
        "minutes": round(report.seconds / 60, 1),
        "calm_from_minute": round(report.calm_from_s / 60, 1),
        "kept_after_seconds": round(report.late_s, 1),
        "load_average": round(os.getloadavg()[0], 1),
        "cores_used": round((cpu_s[-1][1] - cpu_s[0][1]) / (cpu_s[-1][0] - cpu_s[0][0]), 3)
        if len(cpu_s) > 1
        else None,
        "requests": report.load.counted,
        "promises": Counter(each.kind for each in report.journal.read()),
        "jobs_by_state": Counter(end.state for end in seen.jobs.values()),
        "jobs_by_task": Counter(end.task for end in seen.jobs.values()),
        "errors": Counter(end.error for end in seen.jobs.values() if end.error),
        "runs": Counter(outcome for runs in seen.runs.values() for outcome in runs),
        "attempts_spent": sum(end.attempt for end in seen.jobs.values()),
        "objects_by_state": Counter(end.state for end in seen.objects.values()),
        "webhooks": {
            "requests": len(told),
            "taken": len(taken),
            "events": len({each.id for each in told}),
            "taken_again": len(taken) - len({(each.id, each.path) for each in taken}),
        },
        "requests_repeated": report.repeats.counted,
        "faults": report.counted,
        "lost": len(report.verdict.lost),
        "doubled": len(report.verdict.doubled),
        "verdict": verdict,
        "refused": report.load.faults[:_MAX_NAMED],
        "trouble": report.trouble,
        "not_flat": [asdict(each) for each in steep],
        "growth": [_growth(each) for each in growths],
        "curves": {
            kind: {
                name: [(round(at), round(value, 2)) for at, value in points] for name, points in found.items()
            }
            for kind, found in report.curves.points.items()
        },
    }


def _growth(growth: Growth) -> str:
    return f"{growth.kind} {growth.name}: {growth.before:.1f} -> {growth.after:.1f}"


def _draw(report: Report, file: Path) -> None:
    num_faults, minutes = sum(report.counted.values()), report.seconds / 60
    title = f"{minutes:.0f} minutes, {num_faults} faults (red ticks), then calm; seed {report.plan.seed}"
    draw(
        report.curves,
        file,
        title=title,
        faults=[at for at, _ in report.faults],
        calm_from_s=report.calm_from_s,
        end_s=report.seconds + report.late_s,
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**31))
    parser.add_argument("--rate", type=float, default=1.0, help="1 is about 1.2 jobs a second")
    parser.add_argument("--fault-every", type=float, default=25.0, help="mean seconds between two faults")
    parser.add_argument("--output", type=Path, default=Path("bench/results"), help="for soak.json, soak.png")
    return parser.parse_args()


if __name__ == "__main__":
    main()
