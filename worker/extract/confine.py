"""The confinement of a process that reads untrusted bytes: set by itself, before it reads them."""

import ctypes
import os
import resource
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final

from worker.extract import seccomp
from worker.extract.draft import ExtractionLimits, OcrLimits
from worker.extract.landlock import wall_off
from worker.extract.privileges import NOBODY, give_up_root

# Exit codes with which the watching process reports a copy that did not exit by itself.
EXIT_OUT_OF_MEMORY: Final = 97
EXIT_OUT_OF_TIME: Final = 98
EXIT_CRASHED: Final = 99

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NO_NEW_PRIVS: Final = 38
# Parsers in C crash in several ways when they get no memory, and in the same ways for other reasons. If the
# process used at least this share of its memory, memory was the reason. Not all of it: the allocation that
# failed may have been a large one.
_NEARLY_ALL: Final = 0.4
_MAPPED_BYTES: Final = 2**30  # libraries and models of OCR: 0.6 GB as measured
_MAX_THREADS: Final = 1024  # in addition to all threads that the user runs already


def fork_confined(limits: ExtractionLimits, *, parent: int) -> int | None:
    """Fork a confined copy of this process and wait for it.

    Two processes, so that the measured memory is the reader's own: the kernel's figure for a process starts
    with the size of the process that started it, which may be large.

    Args:
        limits: of the copy.
        parent: process id; this process ends with that one.

    Returns:
        The exit code of the copy; None in the copy itself, which goes on.
    """
    _end_with(parent)
    watcher = os.getpid()
    pid = os.fork()
    if pid == 0:
        _end_with(watcher)
        _confine(limits)
        _end_with(watcher)  # the kernel resets it when the user changes
        _forbid()
        return None
    _, status, usage = os.wait4(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return code
    if code == -signal.SIGXCPU:
        return EXIT_OUT_OF_TIME
    # Only the kernel kills the copy alone, and only when memory runs out.
    is_full = code == -signal.SIGKILL or usage.ru_maxrss * 1024 >= _NEARLY_ALL * limits.memory_bytes
    return EXIT_OUT_OF_MEMORY if is_full else EXIT_CRASHED


def _end_with(parent: int) -> None:
    """Have this process killed when its parent ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the request took effect
        os._exit(EXIT_CRASHED)


def _confine(limits: ExtractionLimits) -> None:
    """Write no files, run as `nobody`, and stay within the limits.

    If the kernel supports it, also read nothing but our own code and open no connections: the parent's
    environment, which `/proc` shows, holds secrets.
    """
    ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    num_threads = _count_threads(NOBODY if os.geteuid() == 0 else os.geteuid())
    wall_off()
    give_up_root()
    address_space, seconds = limits.memory_bytes, limits.seconds
    if limits.ocr.max_pages:
        address_space = max(address_space, limits.ocr.memory_bytes + _MAPPED_BYTES)
        seconds += limits.ocr.seconds
    for which, most, last in (
        (resource.RLIMIT_AS, limits.memory_bytes, address_space),
        (resource.RLIMIT_CPU, limits.seconds, seconds),
        (resource.RLIMIT_FSIZE, 0, 0),
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_NPROC, num_threads + _MAX_THREADS, num_threads + _MAX_THREADS),
    ):
        _, hard = resource.getrlimit(which)
        bound = last if hard == resource.RLIM_INFINITY else min(last, hard)
        resource.setrlimit(which, (min(most, bound), bound))


def allow_ocr(limits: OcrLimits) -> None:
    """Take the address space and time that this process holds back for OCR, and bound its private memory.

    onnxruntime and OpenCV map several hundred MB that they never touch, so the address space says little
    here. RLIMIT_DATA counts what the process can write to: within 10 % of what it has in memory.
    """
    resource.setrlimit(resource.RLIMIT_DATA, (limits.memory_bytes, limits.memory_bytes))
    for which in (resource.RLIMIT_AS, resource.RLIMIT_CPU):
        _, hard = resource.getrlimit(which)
        resource.setrlimit(which, (hard, hard))


def _forbid() -> None:
    """Forbid new processes, and threads too if the kernel cannot tell them apart."""
    if not seccomp.forbid():
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))


def _count_threads(user: int) -> int:
    """Count what RLIMIT_NPROC counts: every visible thread of the user."""
    number = 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # the process ended
            if process.stat().st_uid == user:
                # The 18th word after the name, which may contain blanks and brackets.
                number += int((process / "stat").read_text().rpartition(")")[2].split()[17])
    return number
