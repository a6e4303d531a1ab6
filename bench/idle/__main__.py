"""`python -m bench.idle`: what a stack that has nothing to do costs.

One engine, one inference worker, one service worker, and no jobs: the CPU of each process in milliseconds a
second, the engine's apart, once the workers' first rounds are over.
"""

import argparse
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Final

from bench.capacity import spent
from bench.report import Row, judge, print_table, write_json
from bench.stand.stand import Stand

_FIRST_SECONDS: Final = 20.0  # the workers' first rounds


def idle(stand: Stand, *, seconds: float) -> list[Row]:
    """Measure for so many seconds."""
    with stand.worker() as worker:
        time.sleep(_FIRST_SECONDS)
        before, began = spent(stand, [worker]), time.monotonic()
        time.sleep(seconds)
        after, took = spent(stand, [worker]), time.monotonic() - began
    costs = {name: 1000 * (after[name] - before[name]) / took for name in after}
    costs = {"all but the engine": sum(costs.values()), **costs}
    return [
        judge(f"CPU ms a second, {name}", "no jobs", [cost], goal="", peer="", scale="", seeds=1)
        for name, cost in costs.items()
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.idle", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long to measure")
    parser.add_argument("--json", type=Path, help="write the table here")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # leaves as after Ctrl-C: servers are stopped
    with (
        tempfile.TemporaryDirectory(prefix="longbatch-bench-") as directory,
        Stand(Path(directory), time_scale=1) as stand,
    ):
        rows = idle(stand, seconds=asked.seconds)
    print_table(rows, f"An idle stack; load average {os.getloadavg()[0]:.1f} at the end")
    write_json(rows, asked.json)


if __name__ == "__main__":
    main()
