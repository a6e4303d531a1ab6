"""Memory, descriptors and threads of every process, and the size of every table, over time."""

import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

import psycopg

from bench import cpu
from cli.stack.stack import Stack

Point = tuple[float, float]  # seconds since the start, and a value

SAMPLE_S: Final = 10.0
_TABLES_EVERY: Final = 6  # samples
# What counts as flat: noise of allocators, connection pools that fill, pages that a vacuum frees later.
_SHARE, _SLACK = 0.10, {"memory": 12.0, "descriptors": 8.0, "threads": 4.0, "table": 1.5}
_SIZES: Final = """
    SELECT relname, pg_total_relation_size(oid) / 1048576.0 FROM pg_class
    WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace
"""


@dataclass(frozen=True, slots=True)
class Growth:
    """A curve between two stretches of the same length.

    Attributes:
        kind: memory in MiB, descriptors, threads, or a table in MiB.
        before: median of the first third of the curve.
        after: median of the last third.
    """

    kind: str
    name: str
    before: float
    after: float

    @property
    def is_flat(self) -> bool:
        """True if it grew by no more than noise."""
        return self.after <= self.before * (1 + _SHARE) + _SLACK[self.kind]


@dataclass
class Curves:
    """The samples by kind and name; a process that was started anew has a new curve, named by its pid.

    Attributes:
        cpu_s: CPU seconds so far of this process and the whole stack.
    """

    began: float = field(default_factory=time.monotonic)
    points: dict[str, dict[str, list[Point]]] = field(
        default_factory=lambda: {kind: defaultdict(list) for kind in _SLACK}
    )
    cpu_s: list[Point] = field(default_factory=list)

    def sample_until(self, over: threading.Event, stack: Stack) -> None:
        """Sample until `over` is set."""
        number = 0
        while not over.wait(SAMPLE_S):
            now = time.monotonic() - self.began
            for name, pid in stack.pids.items():
                if pid is not None:
                    self._sample_process(now, f"{name} {pid}", pid)
            self.cpu_s.append((now, cpu.of_tree(os.getpid())))
            if number % _TABLES_EVERY == 0:
                with suppress(psycopg.Error):
                    self._sample_tables(now, stack.urls.database_url or "")
            number += 1

    def _sample_process(self, now: float, name: str, pid: int) -> None:
        found = [each for each in map(_of_process, (pid, *_descendants(pid))) if each is not None]
        if not found:
            return
        for kind, value in zip(
            ("memory", "descriptors", "threads"), map(sum, zip(*found, strict=True)), strict=True
        ):
            self.points[kind][name].append((now, value))

    def _sample_tables(self, now: float, url: str) -> None:
        with psycopg.connect(url, connect_timeout=5) as connection:
            for name, size in connection.execute(_SIZES):
                self.points["table"][name].append((now, float(size)))

    def growths(self, *, processes_since: float, tables_since: float) -> list[Growth]:
        """Measure every curve that is long enough, from these moments on.

        Args:
            processes_since: from then on no process was killed.
            tables_since: from then on rows were pruned as fast as others came.
        """
        found = []
        for kind, curves in self.points.items():
            since = tables_since if kind == "table" else processes_since
            for name, points in curves.items():
                growth = growth_of(kind, name, [point for point in points if point[0] >= since])
                found += [growth] if growth else []
        return found


def growth_of(kind: str, name: str, points: Sequence[Point]) -> Growth | None:
    """Compare the last third of a curve with the first; None if it has too few points."""
    third = len(points) // 3
    if third < 2:
        return None
    first, last = points[:third], points[-third:]
    return Growth(kind, name, median(value for _, value in first), median(value for _, value in last))


def _descendants(pid: int) -> Iterator[int]:
    with suppress(OSError):
        yield from cpu.descendants(pid)


def _of_process(pid: int) -> tuple[float, float, float] | None:
    """Return private memory in MiB, descriptors and threads; None for a process that ended."""
    try:
        status = _fields(Path(f"/proc/{pid}/status").read_text())
        num_files = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return None
    if "RssAnon" not in status:
        return None  # a zombie
    return int(status["RssAnon"].split()[0]) / 1024, float(num_files), float(status["Threads"])


def _fields(status: str) -> Mapping[str, str]:
    return {name: value.strip() for name, _, value in (line.partition(":") for line in status.splitlines())}
