"""Limits of a process that looks at a stranger's bytes: set by itself, before it does."""

import ctypes
import os
import resource
import signal
from typing import Final

from worker.extract.draft import Limits
from worker.extract.landlock import wall_off

# How the process that watches tells of one that has ended in another way than by an exit of its own.
EXIT_OUT_OF_MEMORY: Final = 97
EXIT_OUT_OF_TIME: Final = 98
EXIT_CRASHED: Final = 99

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NO_NEW_PRIVS: Final = 38
# Parsers in C die in several ways when they get no memory, and so they do of other faults: from this share of
# its memory on, that was it. Less than all: one large piece may be what was missing.
_NEARLY_ALL: Final = 0.4


def fork_confined(limits: Limits, *, parent: int) -> int | None:
    """The exit code of a confined copy of this process; None: this is the copy.

    Two processes, so that the memory of the one that reads is its own: what the kernel says of a process that
    a large one has started begins with the size of that one.
    """
    _end_with(parent)
    watcher = os.getpid()
    pid = os.fork()
    if pid == 0:
        _end_with(watcher)
        _limit(limits)
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


def _limit(limits: Limits) -> None:
    """The process writes no file, starts no other, and has no more than this.

    Where the kernel can see to it, it also reads nothing but its own code and connects to nobody: secrets
    stand in the environment of its parent, which `/proc` shows.
    """
    ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    wall_off()
    for which, most in (
        (resource.RLIMIT_AS, limits.memory_bytes),
        (resource.RLIMIT_CPU, limits.seconds),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),
    ):
        resource.setrlimit(which, (most, most))
