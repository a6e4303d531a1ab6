"""Free TCP ports on the loopback interface, each reserved before its server listens."""

import errno
import random
import socket
import sys
from pathlib import Path

from cli.stack.errors import StackError

LOOPBACK = "127.0.0.1"
_LOWEST = 10_240
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
# What reserves a port is an abstract Unix socket: as ports do, its name belongs to the network namespace,
# and it is free again when its process ends, however that happens.
_reservations: dict[int, socket.socket] = {}


def free_port(host: str = LOOPBACK) -> int:
    """Choose a free port and reserve it until this process ends.

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
        if reserve(port, host):
            return port
    raise StackError(f"Found no free TCP port on {host}.")


def reserve(port: int, host: str = LOOPBACK) -> bool:
    """Reserve a port against every other stack of this machine, whose server may not listen yet.

    Args:
        port: the port.
        host: the address on which the server will listen.

    Returns:
        False if the port is reserved already, or a server listens on it.

    Raises:
        StackError: this machine does not have that address.
    """
    reservation = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if sys.platform == "linux":  # others have no such sockets: there, two stacks may choose one port
            reservation.bind(f"\0longbatch-port-{port}")
    except OSError:
        reservation.close()
        return False
    try:
        is_free = _is_free(port, host)
    except StackError:
        reservation.close()
        raise
    if not is_free:
        reservation.close()
        return False
    _reservations[port] = reservation
    return True


def release(port: int) -> None:
    """Release the port that this process reserved."""
    _reservations.pop(port).close()


def _is_free(port: int, host: str) -> bool:
    """Return True if a server could listen on this port now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As servers do: connections of an earlier server in TIME_WAIT do not block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise StackError(f"This machine does not have the address {host}.") from error
            return False
    return True


def _first_ephemeral() -> int:
    try:
        return int(_EPHEMERAL.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 32_768  # the kernel's default
