"""CPU seconds and memory of processes and all that they started, from /proc."""

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
    return sum(map(_cpu_s, descendants(pid)))


def memory_mib(pid: int | str, *, peak: bool = True) -> float:
    """Read the memory of a process: the peak since it was last cleared, or what it has now."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:" if peak else "VmRSS:")[1].split()[0]) / 1024


def clear_peak(pid: int | str) -> None:
    """Let the peak of a process's memory count from now on."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def parent_of(pid: int) -> int:
    """Return the id of the process that started this one."""
    return int(_stat(pid)[_PARENT])


def descendants(pid: int) -> Iterator[int]:
    """Yield the ids of what a process started, and of what these started."""
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            yield child
            yield from descendants(child)


def _cpu_s(pid: int) -> float:
    try:
        return sum(map(int, _stat(pid)[_USED])) / _TICKS
    except OSError:
        return 0.0


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
