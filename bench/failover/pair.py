"""A Postgres and its standby on loopback, each in a cluster of its own, and the promotion of the standby."""

import time
from datetime import timedelta
from pathlib import Path
from typing import Final

import psycopg

from cli.stack.errors import StackError
from cli.stack.ports import LOOPBACK
from cli.stack.servers.postgres import NAME, EmbeddedPostgres
from cli.stack.servers.postgres_home import find_home, give_to
from cli.stack.service_user import run_as
from longbatch.whole_files import write_whole

_STANDBY: Final = "standby"  # as the primary knows it
_PATIENCE: Final = timedelta(seconds=60)
_IS_STREAMING: Final = "SELECT sync_state FROM pg_stat_replication WHERE state = 'streaming'"


class Standby(EmbeddedPostgres):
    """A copy of a running server that follows it until it is promoted."""

    name = _STANDBY

    def copy(self, primary: EmbeddedPostgres) -> None:
        """Copy the primary's cluster, and follow it from the first start on.

        Raises:
            StackError: the copy failed.
        """
        home = find_home(self.directory)
        # The copy has the roles of the primary.
        write_whole(self.directory / "password", (primary.directory / "password").read_text())
        home.cluster.mkdir(mode=0o700)
        give_to(home.cluster, home.account)
        source = f"{primary.url.rpartition('/')[0]}/postgres?application_name={_STANDBY}"
        self._call("pg_basebackup", "-d", source, "--write-recovery-conf", "--checkpoint=fast")

    def part(self) -> None:
        """Let it hear nothing more of the primary.

        Raises:
            StackError: it still does.
        """
        deadline = time.monotonic() + _PATIENCE.total_seconds()
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET primary_conninfo = 'port=1'")
            connection.execute("SELECT pg_reload_conf()")
            while connection.execute(
                "SELECT FROM pg_stat_wal_receiver WHERE status = 'streaming'"
            ).fetchall():
                if time.monotonic() > deadline:
                    raise StackError("the standby still follows")
                time.sleep(0.1)

    def promote(self) -> None:
        """Let it take writes; return once it does.

        Raises:
            StackError: it does not.
        """
        self._call("pg_ctl", "promote", "--wait", f"--timeout={_PATIENCE.total_seconds():.0f}")

    def _call(self, program: str, *arguments: str) -> None:
        home = find_home(self.directory)
        command = [str(home.programs / program), "-D", str(home.cluster), *arguments]
        done = run_as(home.account, command, env=home.env)
        if done.returncode != 0:
            raise StackError(f"{program} failed: {(done.stderr or done.stdout).strip()}")


class Pair:
    """A primary and its standby.

    Attributes:
        url: of whichever takes writes.
    """

    def __init__(self, directory: Path, *, is_synchronous: bool = True) -> None:
        """Start nothing yet.

        Args:
            directory: empty; holds both clusters.
            is_synchronous: a commit waits until the standby has it on disk.
        """
        self.primary = EmbeddedPostgres(directory / "primary")
        self.standby = Standby(directory / _STANDBY)
        self._is_synchronous = is_synchronous

    @property
    def url(self) -> str:
        """Both hosts, as docs/operations.md tells to name them."""
        login = self.primary.url.removeprefix("postgresql://").partition("@")[0]
        hosts = "&".join(f"host={LOOPBACK}:{each.port}" for each in (self.primary, self.standby))
        return f"postgresql://{login}@/{NAME}?{hosts}&target_session_attrs=read-write"

    def start(self) -> None:
        """Start both; return once the standby follows.

        Raises:
            StackError: one did not start, or the standby does not follow.
        """
        self.primary.start()
        self.standby.copy(self.primary)
        self.standby.start()
        if self._is_synchronous:  # not before the copy, which would wait for a standby of its own
            with psycopg.connect(self.primary.url, autocommit=True) as connection:
                connection.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{_STANDBY}'")
                connection.execute("SELECT pg_reload_conf()")
        wanted = "sync" if self._is_synchronous else "async"
        deadline = time.monotonic() + _PATIENCE.total_seconds()
        with psycopg.connect(self.primary.url, autocommit=True) as connection:
            while connection.execute(_IS_STREAMING).fetchall() != [(wanted,)]:
                if time.monotonic() > deadline:
                    raise StackError("the standby does not follow")
                time.sleep(0.1)

    def kill_primary(self) -> None:
        """Kill the primary, for good."""
        self.primary.kill()

    def remove(self) -> None:
        """Stop both and delete their files."""
        self.standby.remove()
        self.primary.remove()
