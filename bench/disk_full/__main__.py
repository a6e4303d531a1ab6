"""`python -m bench.disk_full`: the disk of a stack, logs included, fills up under load, and has room again.

While it is full, callers must be told so, and nothing that was accepted may be lost or doubled; afterwards
all must go on by itself. The exit status is 1 otherwise. Where this user can mount nothing, it says so and
does nothing.
"""

import argparse
import os
import secrets
import signal
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType

from bench.disk_full.room import isolated, why_not
from bench.disk_full.run import Plan, run
from bench.soak.judged import conclude, say
from jobs import open_files

_INSIDE = "BENCH_DISK_FULL_INSIDE"


def main() -> None:
    """Run it where its mounts are its own, and print the figures."""
    asked = _arguments()
    if os.environ.get(_INSIDE) != "1":
        if reason := why_not():
            print(f"skipped: this user can mount nothing here: {reason}")  # noqa: T201
            return
        command = [
            *isolated(is_root=os.geteuid() == 0),
            sys.executable,
            "-m",
            "bench.disk_full",
            *sys.argv[1:],
        ]
        os.execvpe(command[0], command, os.environ | {_INSIDE: "1"})  # noqa: S606
    open_files.raise_limit()
    over = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        over.set()

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    say(f"seed {asked.seed}")
    plan = Plan(seed=asked.seed, full_s=asked.full, disk_bytes=asked.disk * 2**20)
    with tempfile.TemporaryDirectory(prefix="longbatch-full-", ignore_cleanup_errors=True) as directory:
        Path(directory).chmod(0o711)  # under root, Postgres runs as another user
        report = run(plan, Path(directory), over=over, say=say)
    conclude(report, load_average=round(os.getloadavg()[0], 1))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.disk_full", description=__doc__)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**31))
    parser.add_argument("--full", type=float, default=60.0, help="seconds without room")
    parser.add_argument("--disk", type=int, default=768, help="MiB of the disk, in memory")
    return parser.parse_args()


if __name__ == "__main__":
    main()
