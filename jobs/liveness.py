"""The rule of every process: work that must never end ends its process when it does.

A supervisor restarts a process that exited. Nothing restarts a thread that died while its process goes on.
"""

import faulthandler
import os
import signal
from collections.abc import Callable
from typing import Final

from jobs import telemetry

# For a shutdown that hangs, perhaps because of what failed. Below this a worker's default grace ends.
HARD_EXIT_SECONDS: Final = 15.0
_failed: Final[set[str]] = set()


def end_process(name: str) -> None:
    """Shut this process down as SIGTERM does, with exit code 1, after 15 seconds by force.

    Returns at once; further calls do nothing.

    Args:
        name: of the loop or task that failed.
    """
    if _failed:
        return
    _failed.add(name)
    arm_hard_exit(HARD_EXIT_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
    telemetry.logger().critical(telemetry.PROCESS_ENDING, loop=name)


def guarded(name: str, work: Callable[[], object]) -> Callable[[], None]:
    """Return this work for a thread of the process: if it raises, the process ends."""

    def run() -> None:
        try:
            work()
        except BaseException:  # noqa: BLE001  # the thread's entry point
            end_process(name)

    return run


def exit_code() -> int:
    """Return the exit code of this process: 1 if a part of it failed, otherwise 0."""
    return int(bool(_failed))


def arm_hard_exit(seconds: float) -> None:
    """Dump all stacks and exit with code 1 after this time, whatever Python does; `disarm` prevents it.

    After a failure, an armed exit is never postponed.
    """
    seconds = min(seconds, HARD_EXIT_SECONDS) if _failed else seconds
    faulthandler.dump_traceback_later(seconds, exit=True)


def disarm_hard_exit() -> None:
    """Cancel `arm_hard_exit`."""
    faulthandler.cancel_dump_traceback_later()
