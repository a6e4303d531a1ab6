"""Decides which requests need a key, and with which scope; nothing else does."""

from typing import Final

from starlette.types import Scope as Connection

from jobs.loopback import is_local_request
from jobs.tenants.keys import Scope

# These expose nothing of a tenant.
OPEN: Final = frozenset({"/health/live", "/health/ready", "/docs", "/openapi.json"})
METRICS: Final = "/metrics"
# Its pages know callers by their session; this one makes the code of a link that signs in.
CONSOLE: Final = "/console"
CONSOLE_CODES: Final = f"{CONSOLE}/codes"
_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
# Read-only although the method suggests otherwise.
_READ_ONLY: Final = frozenset(
    ("POST", f"/v1/{kind}/estimate") for kind in ("batches", "summaries", "answers", "extractions")
)
# Anyone who knows it can impersonate us to the tenant's servers.
_SECRETS: Final = frozenset({"/v1/webhook_secret"})
# Everything at and below these belongs to no tenant, or to all.
_OPERATORS: Final = ("/v1/engines/", "/v1/tenants/", "/v1/keys/")


def needed_scope(connection: Connection) -> Scope | None:
    """Return the scope that the caller's key must have.

    Everything not named here needs a key, including paths without a route.

    Returns:
        None: the request needs no key.
    """
    method, path = connection["method"], connection["path"]
    if path in OPEN:
        return None
    if is_console(path):
        return Scope.READ if path == CONSOLE_CODES else None
    if path == METRICS:
        return None if _is_local(connection) else Scope.ADMIN
    if f"{path}/".startswith(_OPERATORS):
        return Scope.OPERATOR
    if (method in _READING and path not in _SECRETS) or (method, path) in _READ_ONLY:
        return Scope.READ
    return Scope.SUBMIT


def is_console(path: str) -> bool:
    """Return True if the path belongs to the console."""
    return path == CONSOLE or path.startswith(f"{CONSOLE}/")


def _is_local(connection: Connection) -> bool:
    """Return True if the request comes from this machine and was meant for it.

    A proxy on this machine may forward others' requests with a `Host` of its own, so it must not expose this
    route.
    """
    client = connection.get("client")
    host = next((value for name, value in connection["headers"] if name == b"host"), b"")
    return is_local_request(client and client[0], host.decode("latin-1"))
