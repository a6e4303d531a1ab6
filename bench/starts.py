"""`python -m bench.starts`: the CPU that each process takes to start.

- API: until it answers, has reported `api.ready` and has loaded its tokenizer; its process for long
  bodies apart, once that has nothing more to do.
- service worker: until it has reported to the database.
- inference worker: until it has found its engine, a `tensorrt_llm` on Triton, and a second more.

A first start of each, which does not count, writes bytecode, whatever PYTHONDONTWRITEBYTECODE says.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from sqlalchemy import text

from bench import cpu
from bench.figures import Figure, Servers, api, run, servers, service_worker, until, wait_for_tokenizer
from bench.stand.stand import Stand

_NUM_STARTS: Final = 3
_API: Final = "API"
_LONG_BODIES: Final = "API's process for long bodies"
_MEMORY: Final = "memory of that process alone"
_SERVICE: Final = "service worker"
_INFERENCE: Final = "inference worker"
_GOALS: Final = {_API: "<= 1.2", _LONG_BODIES: "<= 0.1", _INFERENCE: "<= 2"}
# A process that used no CPU for this long has started.
_QUIET_SECONDS: Final = 1.0
_TICK_SECONDS: Final = 0.02


def measure(directory: Path, _options: argparse.Namespace) -> list[Figure]:
    """Start each process a few times; return the median CPU of each."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    found: dict[str, list[float]] = {}
    with servers(directory / "servers", pool_size=2) as running:
        _repeat(found, lambda: _start_api(running))
        _repeat(found, lambda: {_SERVICE: _start_service_worker(running)})
    with Stand(directory / "stand") as stand:
        _repeat(found, lambda: {_INFERENCE: _start_inference_worker(stand)})
    return [
        Figure(name, statistics.median(each), "MiB" if name == _MEMORY else "s of CPU", _GOALS.get(name, ""))
        for name, each in found.items()
    ]


def _repeat(found: dict[str, list[float]], start: Callable[[], dict[str, float]]) -> None:
    start()  # writes bytecode, and reads files into the page cache
    for _ in range(_NUM_STARTS):
        for name, value in start().items():
            found.setdefault(name, []).append(value)


def _start_api(running: Servers) -> dict[str, float]:
    with api(running) as (port, pid):
        wait_for_tokenizer(port)
        itself = cpu.of_tree(pid) - cpu.of_descendants(pid)
        _until_quiet(pid)
        children = list(cpu.descendants(pid))
        return {
            _API: itself,
            _LONG_BODIES: cpu.of_descendants(pid),
            _MEMORY: sum(map(_private_mib, children)),
        }


def _start_service_worker(running: Servers) -> float:
    with running.sessions.begin() as session:
        session.execute(text("DELETE FROM workers"))
    with service_worker(running) as pid:
        until(lambda: _has_reported(running), seconds=60, every=0.05)
        return cpu.of_tree(pid)


def _has_reported(running: Servers) -> bool:
    with running.sessions() as session:
        return bool(session.scalar(text("SELECT count(*) FROM workers")))


def _start_inference_worker(stand: Stand) -> float:
    with stand.worker() as worker:
        return cpu.of_tree(worker.pid)


def _until_quiet(pid: int) -> None:
    """Wait until what this process started uses no more CPU."""
    last, since = cpu.of_descendants(pid), time.monotonic()
    while time.monotonic() - since < _QUIET_SECONDS:
        time.sleep(0.1)
        if (now := cpu.of_descendants(pid)) > last + _TICK_SECONDS:
            last, since = now, time.monotonic()


def _private_mib(pid: int) -> float:
    """Read the memory of a process that it shares with no other."""
    lines: Iterable[str] = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the figures."""
    run(argparse.ArgumentParser(prog="python -m bench.starts", description=__doc__), measure, arguments)


if __name__ == "__main__":
    main()
