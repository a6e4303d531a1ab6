"""CPU seconds of processes and all that they started, from /proc."""

import os
from collections.abc import Iterator
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
# Fields of /proc/PID/stat after the name: user, system, and of ended children.
_PARENT, _USED = 1, slice(11, 15)


def of_tree(pid: int) -> float:
    """Add up the CPU seconds of a process and its descendants, ended ones included."""
    return _cpu_s(pid) + of_descendants(pid)


def of_descendants(pid: int) -> float:
    """Add up the CPU seconds of what a process started, ended ones of these included."""
    return sum(map(_cpu_s, _descendants(pid)))


def parent_of(pid: int) -> int:
    """Return the id of the process that started this one."""
    return int(_stat(pid)[_PARENT])


def _descendants(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            yield child
            yield from _descendants(child)


def _cpu_s(pid: int) -> float:
    try:
        return sum(map(int, _stat(pid)[_USED])) / _TICKS
    except OSError:
        return 0.0


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
