"""The commands of docs/operations.md for recovery to a point in time, run as an operator types them."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cli.stack.servers.postgres_home import PostgresHome, find_home, give_to
from cli.stack.service_user import run_as

_MANUAL: Final = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
_SECTION: Final = "\n## Recovery to a point in time\n"


@dataclass(frozen=True, slots=True)
class Recipe:
    """The blocks of commands of the section, in their order.

    Attributes:
        archive: makes Postgres keep its log; it restarts afterwards.
        back_up: copies the data directory while Postgres runs.
        restore: puts the copy in place; Postgres starts afterwards.
        wait: ends once the moment is reached and the database takes writes.
    """

    archive: str
    back_up: str
    restore: str
    wait: str

    @staticmethod
    def read() -> "Recipe":
        """Read the manual."""
        section = _MANUAL.read_text().partition(_SECTION)[2].partition("\n## ")[0]
        return Recipe(*re.findall(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL))


class FailedCommandError(Exception):
    """A command of the manual failed."""


@dataclass(frozen=True)
class Operator:
    """Somebody at a shell of the user that runs this Postgres.

    Attributes:
        postgres: directory of the embedded server.
    """

    postgres: Path

    @property
    def backup(self) -> Path:
        """Folder for copies of the data directory."""
        return self._home.directory / "backup"

    @property
    def archive(self) -> Path:
        """Folder for Postgres' log."""
        return self._home.directory / "archive"

    @property
    def cluster(self) -> Path:
        """The data directory."""
        return self._home.cluster

    def prepare(self) -> None:
        """Make the folders, this user's."""
        give_to(self._home.directory, self._home.account)
        for each in (self.backup, self.archive):
            each.mkdir()
            give_to(each, self._home.account)

    def run(self, commands: str, *, url: str = "", moment: str = "") -> None:
        """Run commands of the manual.

        Args:
            commands: for a shell.
            url: of the database.
            moment: to recover to.

        Raises:
            FailedCommandError: one of them failed.
        """
        home = self._home
        env = {
            **home.env,
            "PATH": os.pathsep.join([str(home.programs), os.environ["PATH"]]),
            "LONGBATCH_DATABASE__URL": url,
            "PGDATA": str(self.cluster),
            "BACKUP": str(self.backup),
            "ARCHIVE": str(self.archive),
            "MOMENT": moment,
        }
        done = run_as(home.account, ["/bin/bash", "-euo", "pipefail", "-c", commands], env=env)
        if done.returncode != 0:
            raise FailedCommandError(done.stderr or done.stdout)

    @property
    def _home(self) -> PostgresHome:
        return find_home(self.postgres)
