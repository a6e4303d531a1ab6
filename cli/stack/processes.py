"""A child process in a session of its own, logged to a file, that never outlives its parent."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import IO

from cli.stack.errors import StackError
from cli.stack.logs import log_tail, open_log
from cli.stack.service_user import ServiceUser

_POLL_SECONDS = 0.02
_TRAMPOLINE = Path(__file__).with_name("exec_child.py")


@dataclass(frozen=True)
class Launch:
    """How to start a program and how to end it.

    Attributes:
        argv: the program and its arguments.
        env: its whole environment.
        directory: its working directory.
        account: the user it runs as; None for the user of this process.
        stop_signal: asks it to stop.
        grace: how long it may take to stop before it is killed.
        death_signal: sent by the kernel when this process dies.
        guarded: True if its own children must die with it even after this process has died.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    directory: Path = Path("/")
    account: ServiceUser | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    grace: timedelta = timedelta(seconds=3)
    death_signal: signal.Signals = signal.SIGKILL
    guarded: bool = False


class ChildProcess:
    """A started program. The thread that starts it must outlive it: the kernel signals when it ends."""

    def __init__(self, launch: Launch, log: Path) -> None:
        self.launch = launch
        self.log = log
        self._is_over = False
        with open_log(log) as output:
            self._process = _start(launch, output)

    @property
    def pid(self) -> int:
        """Process id of the program."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code; None while it runs, negative for the signal that ended it."""
        return self._process.poll()

    def wait(self) -> int:
        """Wait for its end and return the exit code."""
        return self._process.wait()

    def send(self, number: signal.Signals) -> None:
        """Send the signal, unless the process has ended."""
        self._process.send_signal(number)

    def stop(self) -> int:
        """Stop it and its process group, by force after the grace; return the exit code."""
        self.send(self.launch.stop_signal)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(self.launch.grace.total_seconds())
        return self.kill()

    def kill(self) -> int:
        """Kill it and its process group; return the exit code."""
        if not self._is_over:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        exit_code = self._process.wait()
        self._is_over = True  # from now on another process may have its id
        return exit_code


def _start(launch: Launch, output: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start the program in a session of its own, with its output in this file."""
    uid, gid = (launch.account.uid, launch.account.gid) if launch.account else (-1, -1)
    prefix = (sys.executable, "-I", "-S", str(_TRAMPOLINE))
    numbers = (os.getpid(), int(launch.death_signal), uid, gid, int(launch.guarded))
    return subprocess.Popen(
        [*prefix, *map(str, numbers), *launch.argv],
        env=dict(launch.env),
        cwd=launch.directory,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def wait_for_child(
    child: ChildProcess, is_ready: Callable[[], bool], *, name: str, timeout: timedelta
) -> None:
    """Wait until the child answers.

    Raises:
        StackError: it ended, or did not answer in time; the message has the end of its log.
    """
    deadline = time.monotonic() + timeout.total_seconds()
    while not is_ready():
        if child.exit_code is not None:
            raise StackError(f"{name} ended with code {child.exit_code}.{log_tail(child.log)}")
        if time.monotonic() > deadline:
            seconds = timeout.total_seconds()
            raise StackError(f"{name} did not answer within {seconds:.0f} s.{log_tail(child.log)}")
        time.sleep(_POLL_SECONDS)
