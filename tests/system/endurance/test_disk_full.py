"""Postgres without room on its disk says so in words that the product understands, and goes on with room."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from bench.disk_full.room import isolated, why_not

ROOT = Path(__file__).resolve().parents[3]
# In a process whose mounts are its own.
FILL = """
import sys
from pathlib import Path

from pydantic import SecretStr
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from bench.disk_full.room import Ballast, mount
from cli.stack.servers.postgres import EmbeddedPostgres
from jobs import database
from jobs.settings import DatabaseSettings

disk = Path(sys.argv[1])
disk.mkdir(mode=0o711)
mount(disk, 256 * 2**20)
server, ballast = EmbeddedPostgres(disk), Ballast(disk)
engine = database.make_engine(DatabaseSettings(url=SecretStr(server.start())))

def insert():
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO kept SELECT md5(n::text) FROM generate_series(1, 20000) n"))

def count():
    with engine.begin() as connection:
        return connection.scalar(text("SELECT count(*) FROM kept"))

with engine.begin() as connection:
    connection.execute(text("CREATE TABLE kept (row text)"))
insert()
ballast.fill()
try:
    insert()
except DBAPIError as error:
    print(database.is_full(error), count())
ballast.drop()
insert()
print(count())
engine.dispose()
server.remove()
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that the user of Postgres can pass through, unlike pytest's."""
    with TemporaryDirectory(prefix="longbatch-test-") as made:
        Path(made).chmod(0o711)
        yield Path(made)


def test_a_full_disk_is_told_apart_and_passes(folder: Path) -> None:
    if reason := why_not():
        pytest.skip(f"this user can mount nothing here: {reason}")
    done = subprocess.run(
        [*isolated(is_root=os.geteuid() == 0), sys.executable, "-P", "-c", FILL, str(folder / "disk")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "20000", "40000"]
