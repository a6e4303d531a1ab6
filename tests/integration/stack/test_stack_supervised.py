"""A supervised server: started again with growing waits, stopped for good, never left behind."""

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest

from cli.stack.errors import StackError
from cli.stack.processes import Launch
from cli.stack.supervised import Backoff, ServerEnded, ServerStarted, SupervisedServer
from support import eventually

_QUICK = Backoff(first=timedelta(seconds=0.01), ceiling=timedelta(seconds=0.04))
_IDLE = "import signal; signal.pause()"
PARENT = (
    "import signal, subprocess, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    f"child = subprocess.Popen([sys.executable, '-c', {_IDLE!r}]); "
    "open({noted!r}, 'w').write(str(child.pid)); signal.pause()"
)
_DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); "


@dataclass
class Script:
    """A server that is a few words of Python; it answers once `flag` exists, or at once without."""

    code: str
    grace: timedelta = timedelta(seconds=5)
    flag: Path | None = None
    name: str = "script"
    guarded: bool = False

    def launch(self) -> Launch:
        return Launch(
            argv=(sys.executable, "-c", self.code),
            env=dict(os.environ),
            grace=self.grace,
            guarded=self.guarded,
        )

    def is_ready(self) -> bool:
        return self.flag is None or self.flag.exists()

    def release(self) -> None:
        """It holds nothing."""


@dataclass
class Heard:
    """What the supervisor reported."""

    events: list[ServerStarted | ServerEnded] = field(default_factory=list)

    @property
    def pids(self) -> list[int]:
        return [event.pid for event in self.events if isinstance(event, ServerStarted)]

    @property
    def ends(self) -> list[ServerEnded]:
        return [event for event in self.events if isinstance(event, ServerEnded)]


@contextmanager
def supervised(
    server: Script, log: Path, *, backoff: Backoff = _QUICK
) -> Iterator[tuple[SupervisedServer, Heard]]:
    heard = Heard()
    running = SupervisedServer(server, log, report=heard.events.append, backoff=backoff)
    running.start()
    try:
        yield running, heard
    finally:
        running.stop()


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_killed_server_comes_back_under_a_new_process_id(tmp_path: Path) -> None:
    with supervised(Script(_IDLE), tmp_path / "log") as (running, heard):
        running.wait_ready(timedelta(seconds=10))
        first = running.pid
        running.send(signal.SIGKILL)
        eventually(lambda: len(heard.pids) == 2)
        assert running.pid == heard.pids[1] != first
        assert [end.reason for end in heard.ends] == ["SIGKILL"]
        assert [event.is_restart for event in heard.events if isinstance(event, ServerStarted)] == [
            False,
            True,
        ]


def test_a_report_that_cannot_be_written_ends_no_server(tmp_path: Path) -> None:
    """As on a full disk, or a terminal that was closed."""

    def fail(_event: ServerStarted | ServerEnded) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    running = SupervisedServer(Script(_IDLE), tmp_path / "log", report=fail, backoff=_QUICK)
    running.start()
    try:
        running.wait_ready(timedelta(seconds=10))
        first = running.pid
        running.send(signal.SIGKILL)
        second = eventually(lambda: running.pid if running.pid != first else None)
        assert is_alive(int(second))
    finally:
        running.stop()


def test_a_server_that_keeps_ending_is_awaited_longer_each_time(tmp_path: Path) -> None:
    with supervised(Script("raise SystemExit(3)"), tmp_path / "log") as (_, heard):
        eventually(lambda: len(heard.ends) >= 4)
        waits = [round(end.restart_in.total_seconds(), 3) for end in heard.ends[:4]]
        assert waits == [0.01, 0.02, 0.04, 0.04]
        assert {end.reason for end in heard.ends} == {"exit code 3"}


def test_a_healthy_run_starts_the_waits_anew(tmp_path: Path) -> None:
    always_healthy = Backoff(first=timedelta(seconds=0.01), healthy=timedelta(0))
    with supervised(Script("pass"), tmp_path / "log", backoff=always_healthy) as (_, heard):
        eventually(lambda: len(heard.ends) >= 3)
        assert {end.restart_in for end in heard.ends} == {timedelta(seconds=0.01)}


def test_a_server_that_does_not_start_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    broken = Script("raise SystemExit('no such thing')", flag=tmp_path / "never")
    told = pytest.raises(StackError, match=r"(?s)does not start: exit code 1\..*no such thing")
    with supervised(broken, tmp_path / "log") as (running, _), told:
        running.wait_ready(timedelta(seconds=20))


def test_a_program_that_does_not_exist_is_named(tmp_path: Path) -> None:
    class Missing(Script):
        def launch(self) -> Launch:
            return Launch(argv=("/no/such/program",), env={})

    missing = Missing("", flag=tmp_path / "never")
    told = pytest.raises(StackError, match="/no/such/program: No such file")
    with supervised(missing, tmp_path / "log") as (running, _), told:
        running.wait_ready(timedelta(seconds=20))


def test_a_deaf_server_is_killed_after_its_grace_and_stays_away(tmp_path: Path) -> None:
    log = tmp_path / "log"
    deaf = Script(_DEAF + "signal.pause()", grace=timedelta(seconds=0.3))
    with supervised(deaf, log) as (running, heard):
        eventually(lambda: log.exists() and "deaf" in log.read_text())
        started = time.monotonic()
        running.stop()
        assert time.monotonic() - started >= 0.3
        assert not is_alive(heard.pids[0])
        assert not heard.ends
        running.stop()
    assert len(heard.pids) == 1


def test_a_stopped_server_can_be_started_again(tmp_path: Path) -> None:
    with supervised(Script(_IDLE), tmp_path / "log") as (running, heard):
        running.wait_ready(timedelta(seconds=10))
        running.stop()
        running.start()
        eventually(lambda: len(heard.pids) == 2)
        assert is_alive(heard.pids[1])


def test_what_a_server_started_ends_with_it(tmp_path: Path) -> None:
    noted = tmp_path / "pid"
    with supervised(Script(PARENT.format(noted=str(noted))), tmp_path / "log") as (running, _):
        grandchild = int(eventually(lambda: noted.exists() and noted.read_text()))
        running.send(signal.SIGKILL)
        eventually(lambda: not is_alive(grandchild))


_SUPERVISOR = """
import sys, threading
from datetime import timedelta
from pathlib import Path
from cli.stack.supervised import DEFAULT_BACKOFF, SupervisedServer
from test_stack_supervised import PARENT, Script

server = Script(PARENT.format(noted=sys.argv[1]), guarded=True)
running = SupervisedServer(server, Path(sys.argv[2]), report=print, backoff=DEFAULT_BACKOFF)
running.start()
running.wait_ready(timedelta(seconds=10))
print(running.pid, flush=True)
threading.Event().wait()
"""


def test_a_killed_supervisor_leaves_nothing_behind(tmp_path: Path) -> None:
    noted = tmp_path / "pid"
    tests = Path(__file__).resolve().parents[2]
    path = os.pathsep.join(map(str, (Path(__file__).parent, tests / "support")))
    with subprocess.Popen(
        [sys.executable, "-c", _SUPERVISOR, str(noted), str(tmp_path / "log")],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    ) as supervisor:
        assert supervisor.stdout is not None
        child = int(next(line for line in supervisor.stdout if line.strip().isdigit()))
        grandchild = int(eventually(lambda: noted.exists() and noted.read_text()))
        assert is_alive(child)
        assert is_alive(grandchild)
        supervisor.kill()
        eventually(lambda: not is_alive(child) and not is_alive(grandchild))
