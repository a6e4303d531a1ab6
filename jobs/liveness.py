"""The rule of every process: work that must never end ends its process when it does.

A supervisor restarts a process that exited. Nothing restarts a thread that died while its process goes on.
"""

import faulthandler
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Final

from jobs import telemetry

# For a shutdown that hangs, perhaps because of what failed.
_HARD_EXIT_SECONDS: Final = 15.0
# The part of it that a worker needs to stop streams and release jobs.
_RELEASE_SECONDS: Final = 7.0
_lock: Final = threading.Lock()
_failed: Final[set[str]] = set()


class Progress:
    """The progress of one thread, which others may look at."""

    def __init__(self) -> None:
        self.at = time.monotonic()

    def make(self) -> None:
        """Record progress."""
        self.at = time.monotonic()


_of_thread: Final = threading.local()


def watch_this_thread(progress: Progress) -> None:
    """Record the progress of the present thread here from now on."""
    _of_thread.progress = progress


def progressed() -> None:
    """Record that the present thread got something done: a long round is not one that hangs."""
    progress: Progress | None = getattr(_of_thread, "progress", None)
    if progress is not None:
        progress.make()


def end_process(name: str, error: BaseException) -> None:
    """Shut this process down as SIGTERM does, with exit code 1, after 15 seconds by force.

    Returns at once; further calls do nothing.

    Args:
        name: of the loop or task that failed.
        error: why.
    """
    with _lock:
        if _failed:
            return
        faulthandler.dump_traceback_later(_HARD_EXIT_SECONDS, exit=True)
        _failed.add(name)
    os.kill(os.getpid(), signal.SIGTERM)
    telemetry.log_failure(telemetry.PROCESS_ENDING, error, loop=name)


def guarded(name: str, work: Callable[[], object]) -> Callable[[], None]:
    """Return this work for a thread of the process: if it raises, the process ends."""

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  # the thread's entry point
            end_process(name, error)

    return run


def exit_code() -> int:
    """Return the exit code of this process: 1 if a part of it failed, otherwise 0."""
    return int(bool(_failed))


def grace(seconds: float) -> float:
    """Return how long running jobs may take to finish: after a failure no longer than the exit leaves."""
    return min(seconds, _HARD_EXIT_SECONDS - _RELEASE_SECONDS) if _failed else seconds


def arm_hard_exit(seconds: float) -> None:
    """Dump all stacks and exit with code 1 after this time, whatever Python does; `disarm` prevents it.

    After a failure the exit is armed already, and stays as it is.
    """
    with _lock:
        if not _failed:
            faulthandler.dump_traceback_later(seconds, exit=True)


def disarm_hard_exit() -> None:
    """Cancel `arm_hard_exit`."""
    faulthandler.cancel_dump_traceback_later()
