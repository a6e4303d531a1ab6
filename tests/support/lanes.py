"""Runs the files of one collection in lanes: processes forked once all tests are collected.

Collecting takes ten seconds of CPU, so one process does it for all lanes. A lane takes a file, or a group of
files, whenever it has none left, and sends its reports to the process that collected, which prints them.
"""

import atexit
import os
import signal
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, Final, Never, TypeAlias

import pytest

import running_order

# A lane that is asked to stop ends the servers of its tests first.
_STOP_SECONDS: Final = 60.0
_Group: TypeAlias = list[int]  # places of its tests in the collection


def add_option(parser: pytest.Parser) -> None:
    parser.addoption("--lanes", type=int, default=0, help="run the tests in this many forked processes")


def register(config: pytest.Config) -> bool:
    """Run the tests in lanes if the command line has them; return whether it does."""
    number = config.getoption("lanes")
    if not number or config.getoption("collectonly"):
        return False
    config.pluginmanager.register(Lanes(number), "lanes")
    return True


@dataclass
class _Lane:
    """A forked process, as the collecting process sees it.

    Attributes:
        connection: to it.
        group: the tests that it still has to start.
        running: the place of the test that it runs; None between two.
    """

    pid: int
    connection: "Connection[Any, Any]"
    group: deque[int] = field(default_factory=deque)
    running: int | None = None


class Lanes:
    """The plugin of the collecting process."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._lanes: list[_Lane] = []
        self._waiting: deque[_Group] = deque()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed and not session.config.getoption("continue_on_collection_errors"):
            raise session.Interrupted(f"{session.testsfailed} errors during collection")
        places = range(len(session.items))
        groups = groupby(places, lambda place: running_order.group_of(session.items[place]))
        self._waiting.extend([*group] for _, group in groups)
        try:
            for _ in range(min(self._number, len(self._waiting))):
                self._start(session)
            while self._lanes:
                self._serve(session)
        finally:
            self._stop()
        return True

    def _start(self, session: pytest.Session) -> None:
        """Fork a lane."""
        ours, theirs = Pipe()
        number = len(self._lanes)
        if (pid := os.fork()) == 0:
            ours.close()
            for other in self._lanes:
                other.connection.close()
            _become_lane(session, theirs, name=f"lane-{number}-{os.getpid()}")
        theirs.close()
        self._lanes.append(_Lane(pid, ours))

    def _serve(self, session: pytest.Session) -> None:
        """Read a message of each lane that has sent one."""
        ready = wait([lane.connection for lane in self._lanes])
        for lane in [each for each in self._lanes if each.connection in ready]:
            try:
                kind, content = lane.connection.recv()
            except (EOFError, ConnectionError):
                self._end(session, lane)
                continue
            if kind == "next":
                lane.group = deque(self._waiting.popleft() if self._waiting else ())
                with suppress(ConnectionError):
                    lane.connection.send([*lane.group])
            elif kind == "start":
                lane.running = content
                lane.group.remove(content)
            elif kind == "finish":
                lane.running = None
            elif kind == "warning":
                session.config.hook.pytest_warning_recorded.call_historic(kwargs=content)
            else:
                hook, config = session.config.hook, session.config
                _log(session, hook.pytest_report_from_serializable(config=config, data=content))
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)

    def _end(self, session: pytest.Session, lane: _Lane) -> None:
        """Report the test in which a lane died, and let another lane run what is left of its file."""
        self._lanes.remove(lane)
        lane.connection.close()
        status = os.waitstatus_to_exitcode(os.waitpid(lane.pid, 0)[1])
        if status == 0 and lane.running is None and not lane.group:
            return
        if lane.running is not None:
            how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
            _log(session, _crash_of(session.items[lane.running], f"the process of the test ended: {how}"))
        if lane.group:
            self._waiting.appendleft([*lane.group])
        self._start(session)

    def _stop(self) -> None:
        """Make the lanes that still run stop at their next message, and wait until they have cleaned up.

        An interrupt could hit a fixture's teardown and leave half of it undone.
        """
        for lane in self._lanes:
            lane.connection.close()
        ends_at = time.monotonic() + _STOP_SECONDS
        for lane in self._lanes:
            ended = os.pidfd_open(lane.pid)
            if not wait([ended], timeout=max(0.0, ends_at - time.monotonic())):
                os.kill(lane.pid, signal.SIGKILL)
            os.close(ended)
            os.waitpid(lane.pid, 0)
        self._lanes.clear()


class _Reporter:
    """The plugin of a lane that sends what it reports to the collecting process."""

    def __init__(self, config: pytest.Config, send: Callable[[str, Any], None]) -> None:
        self._config = config
        self._send = send

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        hook = self._config.hook
        self._send("report", hook.pytest_report_to_serializable(config=self._config, report=report))

    def pytest_warning_recorded(self, warning_message: Any, when: str, nodeid: str, location: Any) -> None:  # noqa: ANN401  # as pytest calls it
        found = {"when": when, "nodeid": nodeid, "location": location}
        try:
            self._send("warning", {"warning_message": warning_message, **found})
        except Exception:  # noqa: BLE001  # the message of a stranger, which may not be pickled
            warning_message.message = UserWarning(str(warning_message.message))
            warning_message.category, warning_message.source = UserWarning, None
            self._send("warning", {"warning_message": warning_message, **found})


class _NextItem:
    """The test after the last one of a file: known once another file has been handed out.

    pytest asks for it when it tears the last test down, to keep the fixtures that the next one uses, too.
    """

    def __init__(self, find: Callable[[], pytest.Item | None]) -> None:
        self._find = find

    @property  # type: ignore[misc]  # hooks look at the kind of a test, too
    def __class__(self) -> type:
        return type(self._find())

    def __bool__(self) -> bool:
        return self._find() is not None

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # whatever a test has
        """Return the attribute of the test; None if there is no further test."""
        return getattr(self._find(), name, None)


class _LaneSession:
    """What a lane does: it runs groups until there are no more."""

    def __init__(self, session: pytest.Session, connection: "Connection[Any, Any]") -> None:
        self._session = session
        self._connection = connection
        self._group: _Group = []
        self._next: _Group | None = None

    def run(self) -> None:
        self._group = self._ask()
        while self._group:
            self._next = None
            for place, following in zip(self._group, [*self._group[1:], None], strict=True):
                item = self._session.items[place]
                after: Any = (
                    _NextItem(self._first_of_next) if following is None else self._session.items[following]
                )
                self.send("start", place)
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
                self.send("finish", place)
            self._group = self._take_next()

    def send(self, kind: str, content: Any) -> None:  # noqa: ANN401  # what can be pickled
        self._connection.send((kind, content))

    def _ask(self) -> _Group:
        self.send("next", None)
        group: _Group = self._connection.recv()
        return group

    def _take_next(self) -> _Group:
        if self._next is None:
            self._next = self._ask()
        return self._next

    def _first_of_next(self) -> pytest.Item | None:
        group = self._take_next()
        return self._session.items[group[0]] if group else None


def _become_lane(session: pytest.Session, connection: "Connection[Any, Any]", *, name: str) -> Never:
    """Run tests until there are none left, and end the process."""
    status = 1
    try:
        config = session.config
        _set_up(config, name)
        lane = _LaneSession(session, connection)
        config.pluginmanager.register(_Reporter(config, lane.send), "lane-reporter")
        try:
            lane.run()
        finally:
            session._setupstate.teardown_exact(None)
        status = 0
    except (KeyboardInterrupt, EOFError, ConnectionError):
        status = 2  # the collecting process has ended, or is about to
    finally:
        with suppress(Exception):
            atexit._run_exitfuncs()
        os._exit(status)


def _set_up(config: pytest.Config, name: str) -> None:
    """Give a lane its own terminal, file of captured output, and temporary folders."""
    manager = config.pluginmanager
    for plugin in ("lanes", "terminalreporter"):
        manager.unregister(name=plugin)
    capture: Any = manager.getplugin("capturemanager")
    capture.suspend_global_capture(in_=True)
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)
    os.close(devnull)
    capture._global_capturing = None
    capture.start_global_capturing()
    folders: Any = config._tmp_path_factory  # type: ignore[attr-defined]  # pytest has no public way
    folders._basetemp = folders.getbasetemp() / name
    folders._basetemp.mkdir(mode=0o700)


def _log(session: pytest.Session, found: Any) -> None:  # noqa: ANN401  # a report of whatever kind
    session.config.hook.pytest_runtest_logreport(report=found)


def _crash_of(item: pytest.Item, message: str) -> pytest.TestReport:
    return pytest.TestReport(item.nodeid, item.location, {}, "failed", message, "call")
