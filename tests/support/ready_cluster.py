"""Copies of one Postgres cluster that is migrated already: making and migrating one takes a second of CPU."""

import fcntl
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from cli.stack.database import migrated
from cli.stack.servers import postgres
from cli.stack.servers.postgres import EmbeddedPostgres
from cli.stack.servers.postgres_home import PostgresHome, find_home, give_to

_folder: Path | None = None


def share(folder: Path) -> None:
    """Keep the original in this folder, which all lanes of a run share; the first to need it makes it."""
    global _folder  # noqa: PLW0603  # one per process, as the lanes are
    _folder = folder


def remove() -> None:
    """Remove the original, wherever its files are; the copies stay."""
    if _folder is not None and _folder.is_dir():
        EmbeddedPostgres(_folder / "original").remove()


@contextmanager
def copied() -> Iterator[None]:
    """Copy the original for each new cluster within the block; make them as users do where none is shared."""
    if _folder is None:
        yield
        return
    directory = _made_in(_folder)
    original, password = find_home(directory), postgres._password(directory)

    def copy(home: PostgresHome, _password: str) -> None:
        building = home.directory / "cluster.new"
        shutil.rmtree(building, ignore_errors=True)
        subprocess.run(["cp", "-a", original.cluster, building], check=True)  # noqa: S607  # the cp of the PATH
        give_to(building, home.account)
        building.rename(home.cluster)

    def give_password(directory: Path) -> str:
        file = directory / "password"
        if not file.exists():
            file.write_text(password)
            file.chmod(0o600)
        return file.read_text()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(postgres, "_initialise", copy)
        patch.setattr(postgres, "_password", give_password)
        yield


def _made_in(folder: Path) -> Path:
    """Return the directory of the original; make it if no lane has."""
    folder.mkdir(exist_ok=True)
    directory, complete = folder / "original", folder / "complete"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.exists():
            server = EmbeddedPostgres(directory)
            server.start()
            with migrated(server.url):
                pass
            _cheapen_logins(server, postgres._password(directory))
            server.stop()
            complete.touch()
    return directory


def _cheapen_logins(server: EmbeddedPostgres, password: str) -> None:
    """Store the same password with one round of hashing instead of 4,096: two milliseconds for each login."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("SET scram_iterations = 1")
        command = sql.SQL("ALTER ROLE {} PASSWORD {}")
        connection.execute(command.format(sql.Identifier(postgres.NAME), sql.Literal(password)))
