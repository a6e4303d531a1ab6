"""A Postgres server of our own on a random loopback port, durable in one directory."""

import os
import secrets
import shutil
import signal
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import psycopg

from cli.stack.errors import StackError
from cli.stack.ports import LOOPBACK, free_port
from cli.stack.processes import Launch
from cli.stack.server import EmbeddedServer
from cli.stack.servers.postgres_home import PostgresHome, find_home, give_to
from cli.stack.service_user import run_as
from longbatch.whole_files import write_whole

NAME = "longbatch"  # of the superuser and the database
_MAJOR_VERSION = "18"
_ORPHAN_PATIENCE = timedelta(seconds=5)  # the kernel sends SIGINT to a postmaster that loses its parent
_SETTINGS = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",  # a data directory's path may be too long for a socket
    "max_connections": "100",
    "shared_buffers": "128MB",
    "fsync": "on",
    "synchronous_commit": "on",
    "timezone": "UTC",
    "log_timezone": "UTC",
    # Keep prompts out of the log: no parameters, and no DETAIL with the values of a row.
    "log_parameter_max_length": "0",
    "log_parameter_max_length_on_error": "0",
    "log_error_verbosity": "terse",
}


class EmbeddedPostgres(EmbeddedServer):
    """A server and its database `longbatch`; data and password survive restarts.

    The constructor chooses the port, so `url` stays valid for the object's whole life.
    """

    name = "postgres"
    start_timeout = timedelta(seconds=60)  # crash recovery reads the log since the last checkpoint

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._home: PostgresHome | None = None
        self._password: str | None = None
        self.port = free_port()

    @property
    def url(self) -> str:
        """URL of the database for its superuser.

        Raises:
            StackError: the server was never launched, so it has no password yet.
        """
        if self._password is None:
            raise StackError("Postgres has not been started.")
        return f"postgresql://{NAME}:{self._password}@{LOOPBACK}:{self.port}/{NAME}"

    def launch(self) -> Launch:
        """Prepare its directory and return how to start it.

        Locks and initialises the directory, and clears the remains of an earlier server.

        Raises:
            StackError: the directory cannot be used.
        """
        home = self._home = self._home or find_home(self.directory)
        self._hold(home.directory)
        self._password = _password(self.directory)
        if not home.cluster.exists():
            _initialise(home, self._password)
        _check_version(home.cluster)
        _clear_remains(home.cluster)
        settings = [f"--{key}={value}" for key, value in {**_SETTINGS, "port": str(self.port)}.items()]
        return Launch(
            argv=(str(home.programs / "postgres"), "-D", str(home.cluster), *settings),
            env=home.env,
            account=home.account,
            stop_signal=signal.SIGINT,  # "fast": ends sessions, writes a checkpoint
            death_signal=signal.SIGINT,
        )

    def is_ready(self) -> bool:
        """Return True if the database answers a query."""
        try:
            with psycopg.connect(self.url, connect_timeout=2) as connection:
                connection.execute("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def remove(self) -> None:
        """Stop it and delete its files, wherever they are."""
        self.stop()
        (self._home or find_home(self.directory)).remove()
        shutil.rmtree(self.directory, ignore_errors=True)


def _password(directory: Path) -> str:
    """Return the directory's password; create one for a new directory."""
    file = directory / "password"
    if not file.exists():
        write_whole(file, secrets.token_urlsafe(24))
    return file.read_text()


def _initialise(home: PostgresHome, password: str) -> None:
    """Create a cluster with an empty database; rename it into place when complete."""
    building = home.directory / "cluster.new"
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(mode=0o700)
    give_to(building, home.account)
    secret = home.directory / "initdb.password"
    write_whole(secret, password)
    give_to(secret, home.account)
    try:
        _run(
            home,
            "initdb",
            *("-D", str(building), "--username", NAME, "--pwfile", str(secret)),
            *("--auth", "scram-sha-256", "--encoding", "UTF8", "--no-instructions"),
            *("--locale-provider", "builtin", "--builtin-locale", "C.UTF-8", "--locale", "C"),
        )
    finally:
        secret.unlink()
    _run(home, "postgres", "--single", "-D", str(building), "postgres", text=f"CREATE DATABASE {NAME}")
    building.rename(home.cluster)


def _run(home: PostgresHome, program: str, *arguments: str, text: str = "") -> None:
    done = run_as(home.account, [str(home.programs / program), *arguments], env=home.env, text=text)
    if done.returncode != 0:
        raise StackError(f"{program} failed: {(done.stderr or done.stdout).strip()}")


def _check_version(cluster: Path) -> None:
    found = (cluster / "PG_VERSION").read_text().strip()
    if found != _MAJOR_VERSION:
        raise StackError(
            f"{cluster} was created by Postgres {found}, this is {_MAJOR_VERSION}: dump it with that version."
        )


def _clear_remains(cluster: Path) -> None:
    """Remove what a dead server left in the cluster.

    The caller holds the directory's lock, so a server that still runs here has lost its parent. Without this,
    Postgres refuses to start while a backend of a killed postmaster lives, or if another process has the id
    in the stale pid file.
    """
    deadline = time.monotonic() + _ORPHAN_PATIENCE.total_seconds()
    while remaining := list(_processes_in(cluster)):
        if time.monotonic() > deadline:
            for pid in remaining:
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    (cluster / "postmaster.pid").unlink(missing_ok=True)


def _processes_in(cluster: Path) -> Iterator[int]:
    """Yield the processes of the cluster: postmaster and backends, but no zombies."""
    where = str(cluster.resolve())
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                found = (process / "cwd").readlink()
            except OSError:  # ended, a zombie, or not ours
                continue
            if str(found) == where:
                yield int(process.name)
