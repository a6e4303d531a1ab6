"""The confined processes as their users see them: started when needed, asked one question at a time."""

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from jobs.errors import UnavailableError

# At once, 30 MB each.
NUM_PROCESSES: Final = 4
# The processes bound their own time; this is for one that the machine does not let run.
_MAX_SECONDS: Final = 60.0
_ROOT: Final = Path(__file__).resolve().parents[3]
# Nothing is inherited: neither settings with their secrets nor anything that changes Python's imports.
_ENVIRONMENT: Final = {"PATH": os.defpath, "LANG": "C.UTF-8"}


class TooCostlyError(Exception):
    """The answer to a question takes more time or memory than may be spent on it."""


class CheckerLostError(UnavailableError):
    """The form of the answer could not be checked; try again."""


class ConfinedProcesses:
    """Processes that answer one question at a time. Safe to use from several threads, which take turns."""

    def __init__(self) -> None:
        self._places = threading.BoundedSemaphore(NUM_PROCESSES)
        self._lock = threading.Lock()
        self._idle: list[subprocess.Popen[bytes]] = []

    def ask(self, question: Mapping[str, object]) -> Any:  # noqa: ANN401  # JSON
        """Return the fault that a process finds, or None.

        Raises:
            TooCostlyError: finding it takes too much time or memory.
            CheckerLostError: no process can be started, or the machine ended it; try again.
        """
        with self._places:
            process = self._take()
            told = _tell(process, json.dumps(question).encode() + b"\n")
            if not told.endswith(b"\n"):
                _end(process)
                raise CheckerLostError
            with self._lock:
                self._idle.append(process)
        reply = json.loads(told)
        if "fault" not in reply:
            raise TooCostlyError
        return reply["fault"]

    def close(self) -> None:
        """End the processes that are idle."""
        with self._lock:
            idle, self._idle = self._idle, []
        for process in idle:
            _end(process)

    def _take(self) -> subprocess.Popen[bytes]:
        """Take a process that waits and lives, or start one."""
        with self._lock:
            while self._idle:
                process = self._idle.pop()
                if process.poll() is None:
                    return process
                _end(process)
        try:
            return subprocess.Popen(
                [sys.executable, "-E", "-s", "-m", "jobs.prompts.confined"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # what it says of an error may quote a caller
                cwd=_ROOT,
                env=_ENVIRONMENT,
                start_new_session=True,  # what interrupts its parent lets its checks end
            )
        except OSError as error:
            raise CheckerLostError from error


def _tell(process: subprocess.Popen[bytes], question: bytes) -> bytes:
    """Pass a question on and return the line of its answer, or less if the process ends."""
    if process.stdin is None or process.stdout is None:
        raise ValueError("the process has pipes")
    timer = threading.Timer(_MAX_SECONDS, _kill, [process])
    timer.daemon = True
    timer.start()
    try:
        with suppress(BrokenPipeError):
            process.stdin.write(question)
            process.stdin.flush()
        return process.stdout.readline()
    finally:
        timer.cancel()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process with its forks, which are in a session of its own."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def _end(process: subprocess.Popen[bytes]) -> None:
    _kill(process)
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(OSError):
                stream.close()


SHARED: Final = ConfinedProcesses()
atexit.register(SHARED.close)
