"""Tells this machine's own addresses and names from those of the network."""

import ipaddress
from urllib.parse import urlsplit


def is_loopback(host: str | None) -> bool:
    """Return True if this address or name is reached without a network."""
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return host == "localhost"


def is_local_request(client: str | None, host: str | None) -> bool:
    """Return True if a request comes from this machine and was meant for it.

    A page of another site can make a browser on this machine send requests to loopback, by pointing its own
    name there (DNS rebinding). Such a request has that name in its `Host` header.

    Args:
        client: the address that the request comes from.
        host: the `Host` header, with or without a port.
    """
    try:
        name = urlsplit(f"//{host or ''}").hostname
    except ValueError:
        return False
    return is_loopback(client) and is_loopback(name)
