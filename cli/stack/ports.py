"""Free TCP ports on the loopback interface."""

import random
import socket
from pathlib import Path

from cli.stack.errors import StackError

LOOPBACK = "127.0.0.1"
_LOWEST = 10_240
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
# Ports that this process handed out; their servers may not have bound them yet.
_given: set[int] = set()


def free_port() -> int:
    """Choose a port that is free and that this process has not handed out before.

    The port is below the kernel's ephemeral range. Inside that range, a client that retries while the server
    restarts could get the server's own port as its source, and the server could never bind it again.

    Raises:
        StackError: a thousand tries found none.
    """
    highest = _first_ephemeral() - 1
    if highest <= _LOWEST:
        highest = 65_535
    for _ in range(1000):
        port = random.randint(_LOWEST, highest)  # noqa: S311 not a secret
        if port not in _given and is_free(port):
            _given.add(port)
            return port
    raise StackError("Found no free TCP port on 127.0.0.1.")


def is_free(port: int, host: str = LOOPBACK) -> bool:
    """Return True if a server could listen on this port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: connections of an earlier server in TIME_WAIT do not block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def _first_ephemeral() -> int:
    try:
        return int(_EPHEMERAL.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 32_768  # the kernel's default
