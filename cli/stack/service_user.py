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
class Account:
    """A user of this machine."""

    name: str
    uid: int
    gid: int


def unprivileged_account(owned: Path | None = None) -> Account | None:
    """Who a server that refuses to be root runs as; None when we are not root ourselves.

    Args:
        owned: files of an earlier run; their owner is taken again unless it is root.

    Raises:
        StackError: this machine has no such user.
    """
    if os.geteuid() != 0:
        return None
    if owned is not None and owned.exists() and (status := owned.stat()).st_uid != 0:
        return Account(name=_name_of(status.st_uid), uid=status.st_uid, gid=status.st_gid)
    for name in _CANDIDATES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name=name, uid=entry.pw_uid, gid=entry.pw_gid)
    raise StackError("Postgres refuses to run as root, and there is neither a user `postgres` nor `nobody`.")


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def run_as(
    account: Account | None, command: list[str], *, env: Mapping[str, str] | None = None, text: str = ""
) -> subprocess.CompletedProcess[str]:
    """The command has ended, run as this account (None: ours) in `/` with `text` as its input.

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


def succeeds(account: Account | None, command: list[str], *, env: Mapping[str, str] | None = None) -> bool:
    """Whether the command ends well as this account: the one test that knows ACLs and mount options."""
    try:
        return run_as(account, command, env=env).returncode == 0
    except OSError:
        return False


def can_write(account: Account | None, directory: Path) -> bool:
    """Whether the account can get into this directory and make files there."""
    return succeeds(account, ["/bin/sh", "-c", 'cd -- "$1" && test -w .', "sh", str(directory)])
