"""Limits of a process that looks at a stranger's bytes: set by itself, before it does."""

import ctypes
import os
import resource
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final

from worker.extract import seccomp
from worker.extract.draft import Limits
from worker.extract.landlock import wall_off
from worker.extract.privileges import NOBODY, give_up_root

# How the process that watches tells of one that has ended in another way than by an exit of its own.
EXIT_OUT_OF_MEMORY: Final = 97
EXIT_OUT_OF_TIME: Final = 98
EXIT_CRASHED: Final = 99

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NO_NEW_PRIVS: Final = 38
# Parsers in C die in several ways when they get no memory, and so they do of other faults: from this share of
# its memory on, that was it. Less than all: one large piece may be what was missing.
_NEARLY_ALL: Final = 0.4
_MAX_THREADS: Final = 1024  # beside all that its user runs already


def fork_confined(limits: Limits, *, parent: int) -> int | None:
    """Run on in a confined copy of this process.

    Two processes, so that the memory of the one that reads is its own: what the kernel says of a process that
    a large one has started begins with the size of that one.

    Args:
        limits: what the copy may take.
        parent: this process ends with that one.

    Returns:
        The exit code of the copy; None in the copy itself.
    """
    _end_with(parent)
    watcher = os.getpid()
    pid = os.fork()
    if pid == 0:
        _end_with(watcher)
        _confine(limits)
        _end_with(watcher)  # the kernel forgets it with the user
        _forbid()
        return None
    _, status, usage = os.wait4(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return code
    if code == -signal.SIGXCPU:
        return EXIT_OUT_OF_TIME
    # Nobody but the kernel kills it alone, and for memory.
    is_full = code == -signal.SIGKILL or usage.ru_maxrss * 1024 >= _NEARLY_ALL * limits.memory_bytes
    return EXIT_OUT_OF_MEMORY if is_full else EXIT_CRASHED


def _end_with(parent: int) -> None:
    """The process is killed when its parent ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was gone before this could be asked for
        os._exit(EXIT_CRASHED)


def _confine(limits: Limits) -> None:
    """Write no file, be nobody, take no more than this.

    Where the kernel can see to it, also read nothing but its own code and connect to nobody: secrets are in
    the environment of the parent, which `/proc` shows.
    """
    ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    num_threads = _count_threads(NOBODY if os.geteuid() == 0 else os.geteuid())
    wall_off()
    give_up_root()
    for which, most in (
        (resource.RLIMIT_AS, limits.memory_bytes),
        (resource.RLIMIT_CPU, limits.seconds),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, num_threads + _MAX_THREADS),
    ):
        _, hard = resource.getrlimit(which)
        bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(which, (bound, bound))


def _forbid() -> None:
    """Start no other process; where the kernel cannot tell them apart, no thread either."""
    if not seccomp.forbid():
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))


def _count_threads(user: int) -> int:
    """Count what RLIMIT_NPROC counts: every thread of the user, as far as it can be seen."""
    number = 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if process.stat().st_uid == user:
                # Behind the name, which may hold blanks and brackets, it is the 18th word.
                number += int((process / "stat").read_text().rpartition(")")[2].split()[17])
    return number
