"""Processes of the product, started as an operator starts them."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final

from rig.waiting import PATIENCE

REPOSITORY: Final = Path(__file__).resolve().parents[3]
_KEPT: Final = frozenset({"LONGBATCH_CACHE_DIR"})


def start_process(
    arguments: Sequence[str], environment: Mapping[str, str], *, log: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Start `python -m …` with this whole environment.

    The only place of the suite that starts the product: another way to start it replaces this function.
    """
    return subprocess.Popen(
        [sys.executable, "-P", "-m", *arguments],
        env=dict(environment),
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
    )


class Process:
    """One process of the product and its log."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.log = log
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("LONGBATCH_")}
        kept = {name: os.environ[name] for name in _KEPT & os.environ.keys()}
        whole = {**inherited, **kept, "PYTHONPATH": str(REPOSITORY), **environment}
        with log.open("wb") as written:
            self._popen = start_process(arguments, whole, log=written)

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def is_running(self) -> bool:
        return self._popen.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process if it runs."""
        if self.is_running:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it as the kernel kills for memory: it gets no chance to do anything."""
        self.send(signal.SIGKILL)
        self._popen.wait()

    def wait(self, timeout: float = PATIENCE) -> int:
        """Wait for its end; return the exit code."""
        return self._popen.wait(timeout)

    def stop(self) -> int:
        """Ask it to end, wait for that, and return the exit code."""
        self.send(signal.SIGCONT)
        self.send(signal.SIGTERM)
        try:
            return self.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()
            return self.wait()

    def succeed(self) -> str:
        """Wait for its end; return what it wrote."""
        code, written = self.wait(), self.log.read_text()
        assert code == 0, written
        return written
