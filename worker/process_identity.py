"""Identifies operating-system processes, and finds out for certain that one has ended."""

import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Final

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_PID_NAMESPACE: Final = Path("/proc/self/ns/pid")
_NETWORK_NAMESPACE: Final = Path("/proc/self/ns/net")
_SELF: Final = Path("/proc/self")
_STATE, _START_TIME = 0, 19  # fields of /proc/PID/stat after the name; proc(5) numbers them 3 and 22
_DEAD_STATES: Final = ("Z", "X", "x")


def this_host() -> str | None:
    """Identify what process ids are unique in: this boot and PID namespace.

    In containers every PID is 1, so a PID alone identifies nothing.

    Returns:
        None if the system does not show it.
    """
    try:
        if _SELF.readlink().name != str(os.getpid()):  # /proc shows another PID namespace
            return None
        return f"{_BOOT_ID.read_text().strip()}/{_PID_NAMESPACE.readlink().name}"
    except OSError:
        return None


def this_network() -> str:
    """Identify what loopback addresses are unique in: this boot and network namespace."""
    try:
        boot, namespace = _BOOT_ID.read_text()[:8], _NETWORK_NAMESPACE.readlink().name
        return f"{boot}-{namespace.strip('net:[]')}"
    except OSError:
        return socket.gethostname()


def this_process() -> str | None:
    """Identify this process for `has_ended`; None if the system does not show enough."""
    host, stat = this_host(), _stat(os.getpid())
    return None if host is None or stat is None else f"{host}/{os.getpid()}/{stat[_START_TIME]}"


def has_ended(process: str) -> bool:
    """Return True if this process has certainly ended; False if it lives, or cannot be seen from here."""
    host, _, rest = process.rpartition("/")
    host, _, pid = host.rpartition("/")
    if host != this_host():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # it is another user's
    # A mount option can hide other users' processes: then nothing is certain.
    stat = _stat(int(pid))
    return stat is not None and (stat[_START_TIME] != rest or stat[_STATE] in _DEAD_STATES)


def _stat(pid: int) -> list[str] | None:
    with suppress(OSError):
        # The name, in parentheses, may hold anything.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return None
