"""The canonical address of an engine's server, by which workers compare engines."""

import ipaddress
import socket
from typing import Final
from urllib.parse import urlsplit

from jobs.loopback import is_loopback
from jobs.settings import EngineSide
from worker import process_identity
from worker.engine.kinds import is_triton, triton_of

_PORTS: Final = {"http": 80, "https": 443}


def address_of(side: EngineSide) -> str:
    """Return the address of the engine's server, the same in all workers that reach the same one by its name.

    A loopback address is another server on each host, so that it is preceded by the host's id. Other names
    and addresses are taken as they are written, though each host may resolve them in its own way.
    """
    if is_triton(side.engine):
        url = f"grpc://{triton_of(side.triton, side.engine).url}"
    else:
        url = side.engine.url or ""
    parts = urlsplit(url)
    host, port = (parts.hostname or "").rstrip("."), parts.port or _PORTS.get(parts.scheme)
    if _is_this_host(host):
        return f"{parts.scheme}://loopback:{port} of host {process_identity.this_network()}"
    return f"{parts.scheme}://{host}:{port}"


def _is_this_host(host: str) -> bool:
    """Return True for `localhost` and for addresses by which a host reaches itself, in any notation."""
    try:
        ((*_, (written, *_)), *_) = socket.getaddrinfo(host, None, flags=socket.AI_NUMERICHOST)
    except OSError:  # a name
        return is_loopback(host)
    address = ipaddress.ip_address(written)
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address
    return address.is_loopback or address.is_unspecified
