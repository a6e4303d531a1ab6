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
    """The answer to a question takes more time or memory than a process may spend on it."""


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
            CheckerLostError: no process can be started, or something else ended it; try again.
        """
        with self._places:
            process = self._take()
            told = _tell(process, json.dumps(question).encode() + b"\n")
            reply = json.loads(told) if told.endswith(b"\n") else None
            if reply is None or reply["is_last"]:
                self._end(process)
            else:
                with self._lock:
                    self._idle.append(process)
        if reply is not None:
            return reply["fault"]
        # A process that spends too much ends by its timer or for want of memory; only others send SIGKILL.
        if process.returncode == -signal.SIGKILL:
            raise CheckerLostError
        raise TooCostlyError

    def close(self) -> None:
        """End the processes that are idle."""
        with self._lock:
            idle, self._idle = self._idle, []
        for process in idle:
            self._end(process)

    def _take(self) -> subprocess.Popen[bytes]:
        """Take a process that waits and lives, or start one."""
        with self._lock:
            while self._idle:
                process = self._idle.pop()
                if process.poll() is None:
                    return process
                self._end(process)
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

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        try:
            process.wait(_MAX_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _tell(process: subprocess.Popen[bytes], question: bytes) -> bytes:
    """Pass a question on and return the line of its answer, or less if the process ends."""
    if process.stdin is None or process.stdout is None:
        raise ValueError("the process has pipes")
    timer = threading.Timer(_MAX_SECONDS, process.kill)
    timer.daemon = True
    timer.start()
    try:
        with suppress(BrokenPipeError):
            process.stdin.write(question)
            process.stdin.flush()
        return process.stdout.readline()
    finally:
        timer.cancel()


SHARED: Final = ConfinedProcesses()
atexit.register(SHARED.close)
