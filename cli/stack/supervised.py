"""A supervised server: restarted whenever it ends, until it is stopped."""

import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from cli.stack.errors import StackError
from cli.stack.logs import log_tail, rotate
from cli.stack.processes import ChildProcess
from cli.stack.server import StackServer
from jobs.errors import LongbatchError

_POLL_SECONDS = 0.02
_MAX_ENDS = 3  # while the stack starts


@dataclass(frozen=True)
class Backoff:
    """The wait before a restart; doubles with each early end.

    Attributes:
        first: wait before the first restart.
        ceiling: longest wait.
        healthy: after running this long, a server starts from `first` again.
    """

    first: timedelta = timedelta(seconds=0.5)
    ceiling: timedelta = timedelta(seconds=30)
    healthy: timedelta = timedelta(minutes=1)

    def delay(self, num_early_ends: int) -> timedelta:
        """Compute the wait after this many early ends in a row, at least one."""
        doublings = min(num_early_ends - 1, 30)  # far past any ceiling, and no overflow
        return min(self.ceiling, self.first * 2.0**doublings)


DEFAULT_BACKOFF = Backoff()


@dataclass(frozen=True)
class ServerStarted:
    """A process has started."""

    name: str
    pid: int
    is_restart: bool


@dataclass(frozen=True)
class ServerEnded:
    """A process ended unexpectedly; it restarts after `restart_in`.

    Attributes:
        reason: "exit code 1", "SIGKILL", or why it could not be started.
    """

    name: str
    reason: str
    restart_in: timedelta
    log: Path


Report = Callable[[ServerStarted | ServerEnded], None]


class SupervisedServer:
    """A server and the thread that starts it, waits for its end and restarts it.

    The thread lives until `stop`: the kernel would take its end for the parent's death.
    """

    def __init__(self, server: StackServer, log: Path, *, report: Report, backoff: Backoff) -> None:
        self.server = server
        self.log = log
        self._report = report
        self._backoff = backoff
        self._guard = threading.Lock()  # for the next two fields: no child starts once stopping is set
        self._stopping = threading.Event()
        self._child: ChildProcess | None = None
        self._thread: threading.Thread | None = None
        self._num_ends = 0
        self._last_failure = ""

    @property
    def pid(self) -> int | None:
        """Process id of the running or last process; None before the first start."""
        return self._child.pid if self._child else None

    def start(self) -> None:
        """Start the server in the background; see `wait_ready`."""
        rotate(self.log)
        self._stopping.clear()
        self._num_ends = 0
        self._thread = threading.Thread(target=self._keep_alive, name=f"{self.server.name}-supervisor")
        self._thread.start()

    def wait_ready(self, timeout: timedelta) -> None:
        """Wait until the server answers.

        Raises:
            StackError: it failed three times in a row, or did not answer in time.
        """
        name = self.server.name
        deadline = time.monotonic() + timeout.total_seconds()
        while self._child is None or not self.server.is_ready():
            self.check()
            if time.monotonic() > deadline:
                raise StackError(
                    f"{name} did not answer within {timeout.total_seconds():.0f} s.{log_tail(self.log)}"
                )
            self._stopping.wait(_POLL_SECONDS)

    def check(self) -> None:
        """Check that the server has not ended three times.

        Raises:
            StackError: it has; the message has the end of its log.
        """
        if self._num_ends >= _MAX_ENDS:
            raise StackError(f"{self.server.name} does not start: {self._last_failure}.{log_tail(self.log)}")

    def send(self, number: signal.Signals) -> None:
        """Send the signal to the running process; if it ends, it restarts."""
        if self._child is not None:
            self._child.send(number)

    def stop(self) -> None:
        """Stop the server for good, by force after its grace. Safe to repeat."""
        with self._guard:
            self._stopping.set()
            child = self._child
        if child is not None:
            child.stop()
        if self._thread is not None:
            self._thread.join()
        self.server.release()

    def _keep_alive(self) -> None:
        num_early_ends = 0
        while not self._stopping.is_set():
            started = time.monotonic()
            reason = self._run_once()
            if self._stopping.is_set():
                return
            uptime = time.monotonic() - started
            num_early_ends = 1 if uptime >= self._backoff.healthy.total_seconds() else num_early_ends + 1
            delay = self._backoff.delay(num_early_ends)
            self._last_failure = reason
            self._num_ends += 1
            self._tell(ServerEnded(self.server.name, reason, delay, self.log))
            self._stopping.wait(delay.total_seconds())

    def _run_once(self) -> str:
        """Run the server until it ends; return why it ended or could not start."""
        try:
            launch = self.server.launch()
            with self._guard:
                if self._stopping.is_set():
                    return "stopped"
                child = self._child = ChildProcess(launch, self.log)
        except (LongbatchError, OSError) as error:
            return str(error)
        self._tell(ServerStarted(self.server.name, child.pid, is_restart=self._num_ends > 0))
        child.wait()
        return _reason(child.kill())  # ends the rest of its process group too

    def _tell(self, event: ServerStarted | ServerEnded) -> None:
        # Without this thread the kernel kills the server: a full disk or a closed terminal must not end it.
        with suppress(OSError):
            self._report(event)


def _reason(exit_code: int) -> str:
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"
