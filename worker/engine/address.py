"""The canonical address of an engine's server, by which workers compare engines."""

from typing import Final
from urllib.parse import urlsplit

from jobs.loopback import is_loopback
from jobs.settings import EngineSide
from worker import process_identity
from worker.engine.kinds import is_triton, triton_of

_PORTS: Final = {"http": 80, "https": 443}


def address_of(side: EngineSide) -> str:
    """Return the address of the engine's server, the same in all workers that reach the same one by its name.

    A loopback address is another server on each host, so that it is preceded by the host's id.
    """
    if is_triton(side.engine):
        url = f"grpc://{triton_of(side.triton, side.engine).url}"
    else:
        url = side.engine.url or ""
    parts = urlsplit(url)
    host, port = (parts.hostname or "").rstrip("."), parts.port or _PORTS.get(parts.scheme)
    if is_loopback(host):
        return f"{parts.scheme}://loopback:{port} of host {process_identity.this_network()}"
    return f"{parts.scheme}://{host}:{port}"
