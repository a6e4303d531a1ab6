"""The unprivileged user that servers run as when we are root."""

import os
import pwd
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cli.stack.errors import StackError

_CANDIDATES = ("postgres", "nobody")


@dataclass(frozen=True)
class ServiceUser:
    """A user of this machine."""

    name: str
    uid: int
    gid: int


def unprivileged_user(owned: Path | None = None) -> ServiceUser | None:
    """Choose the user for a server that refuses to run as root.

    Args:
        owned: files of an earlier run; their owner is chosen again unless it is root.

    Returns:
        None if this process is not root, so that the server runs as the same user.

    Raises:
        StackError: this machine has no suitable user.
    """
    if os.geteuid() != 0:
        return None
    if owned is not None and owned.exists() and (status := owned.stat()).st_uid != 0:
        return ServiceUser(name=_name_of(status.st_uid), uid=status.st_uid, gid=status.st_gid)
    for name in _CANDIDATES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return ServiceUser(name=name, uid=entry.pw_uid, gid=entry.pw_gid)
    raise StackError("Postgres refuses to run as root, and there is neither a user `postgres` nor `nobody`.")


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def run_as(
    account: ServiceUser | None, command: list[str], *, env: Mapping[str, str] | None = None, text: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run the command to its end as this account, in `/`, with `text` as its input.

    Args:
        account: None for the user of this process.
        command: program and arguments.
        env: its whole environment; None inherits ours.
        text: its standard input.

    Raises:
        OSError: it could not be started as this account.
    """
    return subprocess.run(
        command,
        check=False,
        env=env,
        cwd="/",
        input=text,
        capture_output=True,
        text=True,
        errors="replace",
        user=account.uid if account else None,
        group=account.gid if account else None,
        extra_groups=[] if account else None,
    )


def succeeds(
    account: ServiceUser | None, command: list[str], *, env: Mapping[str, str] | None = None
) -> bool:
    """Return True if the command succeeds as this account.

    The only test that respects ACLs and mount options.
    """
    try:
        return run_as(account, command, env=env).returncode == 0
    except OSError:
        return False


def can_write(account: ServiceUser | None, directory: Path) -> bool:
    """Return True if the account can enter this directory and create files there."""
    return succeeds(account, ["/bin/sh", "-c", 'cd -- "$1" && test -w .', "sh", str(directory)])
