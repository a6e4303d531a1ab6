"""Which requests need a key, and with which scope: the one place that says so."""

import ipaddress
from typing import Final

from starlette.types import Scope as Connection

from jobs.tenants.keys import Scope

# Nothing of a tenant is to be seen there.
OPEN: Final = frozenset({"/health/live", "/health/ready", "/docs", "/openapi.json"})
METRICS: Final = "/metrics"
_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
# What only looks although its method says otherwise.
_LOOKS: Final = frozenset({("POST", "/v1/batches/estimate"), ("POST", "/v1/summaries/estimate")})
# Who reads it can speak in our name to the tenant's servers.
_SECRETS: Final = frozenset({"/v1/webhook_secret"})


def needed_scope(connection: Connection) -> Scope | None:
    """The scope that the caller's key must have; None: no key is needed.

    What is not named here needs a key, paths at which there is nothing included.
    """
    method, path = connection["method"], connection["path"]
    if path in OPEN:
        return None
    if path == METRICS:
        return None if _is_from_here(connection) else Scope.ADMIN
    if (method in _READING and path not in _SECRETS) or (method, path) in _LOOKS:
        return Scope.READ
    return Scope.SUBMIT


def _is_from_here(connection: Connection) -> bool:
    """Whether the request comes from this host. A proxy here speaks for others: it must not pass it on."""
    client = connection.get("client")
    try:
        return client is not None and ipaddress.ip_address(client[0]).is_loopback
    except ValueError:
        return False
