"""`python -m bench.drill`: two APIs, three workers, Postgres, Redis and an engine, on eight hosts in one.

Their clocks are minutes apart and their packets take time; then hosts part, one way or both, and packets are
lost. The exit status is 1 if anything was lost or doubled, or if a clock disturbed a run. Where the kernel
has no network namespaces for this user, it says so and does nothing.
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

from bench.drill.hosts import Network, isolated, why_not
from bench.drill.run import Plan, drill
from bench.soak.judged import conclude, say
from jobs import open_files

_INSIDE = "BENCH_DRILL_INSIDE"
# Where scripts/setup_drill.sh unpacks Debian's packages.
_TOOLS = Path(".drill").absolute()


def main() -> None:
    """Run the drill in a network of its own, and print its figures."""
    asked = _arguments()
    if os.environ.get(_INSIDE) != "1":
        if reason := why_not():
            print(f"skipped: this user can make no network namespaces here: {reason}")  # noqa: T201
            return
        command = [*isolated(is_root=os.geteuid() == 0), sys.executable, "-m", "bench.drill", *sys.argv[1:]]
        os.execvpe(command[0], command, os.environ | {_INSIDE: "1"})  # noqa: S606
    open_files.raise_limit()
    over = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        over.set()

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    network, faketime = Network(_nft()), _faketime()
    say(
        f"seed {asked.seed}; packets {'are' if network.nft else 'are not'} dropped, for nft;"
        f" clocks {'are' if faketime else 'are not'} wrong, for faketime"
    )
    plan = Plan(seed=asked.seed, skewed_s=60 * asked.skewed, parting_s=60 * asked.parting)
    with tempfile.TemporaryDirectory(prefix="longbatch-drill-", ignore_cleanup_errors=True) as directory:
        Path(directory).chmod(0o711)  # under root, Postgres runs as another user
        report = drill(plan, Path(directory), network, faketime=faketime, over=over, say=say)
    conclude(report)


def _nft() -> list[str] | None:
    """Find the program that drops packets: the system's, or Debian's unpacked one with its libraries."""
    unpacked = _TOOLS / "usr" / "sbin" / "nft"
    if unpacked.exists():
        libraries = ":".join(map(str, _TOOLS.glob("**/x86_64-linux-gnu")))
        return ["env", f"LD_LIBRARY_PATH={libraries}", str(unpacked)]
    system = Path("/usr/sbin/nft")
    return [str(system)] if system.exists() else None


def _faketime() -> Path | None:
    """Find the library that makes clocks wrong."""
    found = [*_TOOLS.glob("usr/lib/*/faketime/libfaketimeMT.so.1")]
    found += Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")
    return found[0] if found else None


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.drill", description=__doc__)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**31))
    parser.add_argument("--skewed", type=float, default=1.0, help="minutes in which only clocks are wrong")
    parser.add_argument("--parting", type=float, default=4.0, help="minutes in which machines part")
    return parser.parse_args()


if __name__ == "__main__":
    main()
