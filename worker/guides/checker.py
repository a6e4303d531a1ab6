"""The processes that check answers: a tenant has one check at a time, so none takes them from the others."""

import asyncio
import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final
from uuid import UUID
from weakref import WeakValueDictionary

from jobs.errors import LongbatchError
from jobs.prompts.guides import Guide

# Processes, started when they are first needed, 30 MB each.
_NUM_PROCESSES: Final = 4
# The processes bound their own time; this is for one that the machine does not let run.
_MAX_SECONDS: Final = 60.0
_ROOT: Final = Path(__file__).resolve().parents[2]
TOO_COSTLY: Final = "checking it takes too long"


class CheckerLostError(LongbatchError):
    """The answer's form could not be checked."""

    retryable = True


class FormChecker:
    """Checks answers in processes of their own. Its coroutines run on one event loop.

    Attributes:
        quotes: what it says of an answer may quote it.
    """

    def __init__(self, *, quotes: bool = True) -> None:
        self.quotes: Final = quotes
        self._threads = ThreadPoolExecutor(_NUM_PROCESSES, thread_name_prefix="form")
        self._turns: WeakValueDictionary[UUID, asyncio.Lock] = WeakValueDictionary()
        self._lock = threading.Lock()
        self._idle: list[subprocess.Popen[bytes]] = []

    async def fault_of(self, text: str, guide: Guide, *, tenant_id: UUID) -> str | None:
        """Return what keeps an answer from having its form; None: nothing does.

        Raises:
            CheckerLostError: no process can be started; try again.
        """
        turn = self._turns.setdefault(tenant_id, asyncio.Lock())
        async with turn:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, self.check, text, guide)

    def check(self, text: str, guide: Guide) -> str | None:
        """Find a fault like `fault_of`, in the caller's thread."""
        asked = json.dumps({"guide": guide.written(), "text": text, "quotes": self.quotes}).encode() + b"\n"
        process = self._take()
        told = _tell(process, asked)
        if not told.endswith(b"\n"):
            _end(process)
            return TOO_COSTLY
        with self._lock:
            self._idle.append(process)
        fault: str | None = json.loads(told)
        return fault

    def close(self) -> None:
        """End the processes once their present checks are over."""
        self._threads.shutdown()
        for process in self._idle:
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
                [sys.executable, "-E", "-s", "-m", "worker.guides"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                cwd=_ROOT,
                start_new_session=True,  # what interrupts the worker lets its checks end
            )
        except OSError as error:
            raise CheckerLostError from error


def _tell(process: subprocess.Popen[bytes], asked: bytes) -> bytes:
    """Pass an answer on and return what is said of it, or less if the process ends."""
    if process.stdin is None or process.stdout is None:
        raise ValueError("the process has pipes")
    timer = threading.Timer(_MAX_SECONDS, process.kill)
    timer.daemon = True
    timer.start()
    try:
        with suppress(BrokenPipeError):
            process.stdin.write(asked)
            process.stdin.flush()
        return process.stdout.readline()
    finally:
        timer.cancel()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(OSError):
                stream.close()
