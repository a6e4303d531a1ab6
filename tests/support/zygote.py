"""Starts the product's processes by forking one that has imported their modules already.

Importing them takes seconds of CPU; a fork takes milliseconds. There is one zygote for each program. It runs
no thread, opens no connection, and reads no settings, so that a fork is what `python -m PROGRAM` would be.
"""

import ctypes
import gc
import json
import os
import resource
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

Program = tuple[str, ...]
API: Final[Program] = ("api",)
INFERENCE: Final[Program] = ("worker", "inference")
SERVICE: Final[Program] = ("worker", "service")
PROGRAMS: Final = (API, INFERENCE, SERVICE)

_MAX_REQUEST_BYTES: Final = 2**17
_PR_SET_PDEATHSIG: Final = 1
_ENDED: Final = b"ended "
# Threads of OpenBLAS would not survive the fork.
_OF_ZYGOTES: Final = {"OPENBLAS_NUM_THREADS": "1"}


class ForkedProcess:
    """A process that a zygote has forked, with the interface of `subprocess.Popen`.

    Attributes:
        pid: its id, which no other process gets before its end has been seen here.
        returncode: as Popen's.
        stdout: the end of a pipe that reads what it writes, if one was asked for.
    """

    def __init__(self, status: socket.socket, stdout: IO[str] | None) -> None:
        self.stdout = stdout
        self.returncode: int | None = None
        self._status = status
        self._lock = threading.Lock()
        self.pid = int(status.recv(32))

    def poll(self) -> int | None:
        self._read_status(within=0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        until = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            left = None if until is None else max(0.0, until - time.monotonic())
            if not self._read_status(within=left):
                assert timeout is not None
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return self.returncode

    def send_signal(self, number: int) -> None:
        with self._lock:
            if self.returncode is None:
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _read_status(self, *, within: float | None) -> bool:
        """Return True if the process has ended."""
        readable, _, _ = select.select([self._status], [], [], within)
        with self._lock:
            if self.returncode is None and readable:
                ended = self._status.recv(32)
                # The zygote's end is that of all of its forks.
                self.returncode = int(ended.removeprefix(_ENDED)) if ended else -signal.SIGKILL
                with suppress(OSError):
                    self._status.send(b"seen")  # its id may be used again
            return self.returncode is not None


def start(
    program: Program,
    *,
    env: Mapping[str, str],
    cwd: Path,
    stdout: int | IO[Any],
    start_new_session: bool = False,
    soft_files: int | None = None,
) -> ForkedProcess:
    """Start a program; its standard error goes where its standard output does.

    Args:
        program: one of `PROGRAMS`.
        env: its whole environment.
        cwd: its working directory.
        stdout: a file, or `subprocess.PIPE`.
        start_new_session: as Popen's.
        soft_files: its soft limit of open files; None: that of this process.
    """
    request = {
        "env": dict(env),
        "cwd": str(cwd),
        "start_new_session": start_new_session,
        "soft_files": soft_files or resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    }
    read_end = None
    if stdout == subprocess.PIPE:
        read_end, output = os.pipe()
    else:
        output = os.dup(stdout if isinstance(stdout, int) else stdout.fileno())
    status, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        try:
            _of(program).send(json.dumps(request).encode(), [output, theirs.fileno()])
        finally:
            os.close(output)
    return ForkedProcess(status, None if read_end is None else os.fdopen(read_end, "r"))


class _Zygote:
    """A zygote as its users see it. It kills its forks and ends when this process does."""

    def __init__(self, program: Program) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        env = {name: value for name, value in os.environ.items() if _may_have(name)}
        with theirs:
            subprocess.Popen(
                [sys.executable, "-P", "-u", __file__, str(theirs.fileno()), *program],
                env=env | _OF_ZYGOTES,
                cwd="/",
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def send(self, request: bytes, fds: Sequence[int]) -> None:
        socket.send_fds(self._control, [request], fds)


def _may_have(variable: str) -> bool:
    """Return True unless the variable is a setting; the folder of the cache is none."""
    return not variable.startswith("LONGBATCH_") or variable == "LONGBATCH_CACHE_DIR"


_zygotes: dict[Program, _Zygote] = {}
_starting = threading.Lock()


def start_all() -> None:
    """Start a zygote for each program, for this process and those that it forks."""
    for program in PROGRAMS:
        _of(program)


def _of(program: Program) -> _Zygote:
    with _starting:
        if program not in _zygotes:
            _zygotes[program] = _Zygote(program)
        return _zygotes[program]


@dataclass(frozen=True, slots=True)
class _Fork:
    """What a fork has been made for.

    Attributes:
        request: as `start` sends it.
        stdout: where its output goes.
        zygote_pid: its parent.
    """

    request: dict[str, Any]
    stdout: int
    zygote_pid: int


class _Forks:
    """The zygote's own side: it forks for each request and reports the end of each fork."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._pid = os.getpid()
        self._status: dict[int, socket.socket] = {}  # of each fork, until its end has been seen
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ, self._fork)

    def serve(self) -> _Fork | None:
        """Return in each fork; in the zygote, return None once the process that uses it has ended."""
        while True:
            for key, _ in self._selector.select():
                fork: _Fork | None = key.data(key)
                if fork is not None or self._control.fileno() < 0:
                    return fork

    def _fork(self, _key: selectors.SelectorKey) -> _Fork | None:
        message, fds, _, _ = socket.recv_fds(self._control, _MAX_REQUEST_BYTES, 2)
        if not message:
            self._control.close()
            for pid in self._status:
                os.kill(pid, signal.SIGKILL)
            return None
        output, status = fds[0], socket.socket(fileno=fds[1])
        if (pid := os.fork()) == 0:
            self._close_all(status)
            return _Fork(json.loads(message), output, self._pid)
        os.close(output)
        status.send(str(pid).encode())
        self._status[pid] = status
        self._selector.register(os.pidfd_open(pid), selectors.EVENT_READ, partial(self._report, pid))
        return None

    def _close_all(self, *others: socket.socket) -> None:
        """Close what a fork must not have."""
        for key in self._selector.get_map().values():
            if isinstance(key.fileobj, int):
                os.close(key.fileobj)
        self._selector.close()
        for each in (self._control, *self._status.values(), *others):
            each.close()

    def _report(self, pid: int, key: selectors.SelectorKey) -> None:
        """Send the exit code of a fork that has ended, as Popen has it; leave it a zombie."""
        self._selector.unregister(key.fileobj)
        os.close(key.fd)
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        with suppress(OSError):
            self._status[pid].send(_ENDED + str(code).encode())
        self._selector.register(self._status[pid], selectors.EVENT_READ, partial(self._reap, pid))

    def _reap(self, pid: int, key: selectors.SelectorKey) -> None:
        self._selector.unregister(key.fileobj)
        os.waitpid(pid, 0)
        self._status.pop(pid).close()


def _become(fork: _Fork) -> None:
    """Turn this fork into what its request asks for."""
    request = fork.request
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != fork.zygote_pid:
        sys.exit("the zygote has ended")
    if request["start_new_session"]:
        os.setsid()
    for number in (1, 2):
        os.dup2(fork.stdout, number)
    os.close(fork.stdout)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (request["soft_files"], hard))
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])


def _load(program: Program) -> None:
    import longbatch_server  # noqa: F401  # puts the server's packages on the path

    from jobs.prompts.tokenizer import load_configured
    from jobs.settings import TokenizerSettings

    gc.disable()
    if program == API:
        from api import server  # noqa: F401
    else:
        from worker import process

        process.load(program[1])
    load_configured(TokenizerSettings())  # the default one, which nearly all of the forks use
    gc.collect()
    gc.freeze()


def _main() -> None:
    control, program = socket.socket(fileno=int(sys.argv[1])), tuple(sys.argv[2:])
    control.set_inheritable(False)
    _load(program)
    if (fork := _Forks(control).serve()) is not None:
        _become(fork)
        sys.argv = [program[0], *program[1:]]
        runpy.run_module(program[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
