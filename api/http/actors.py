"""Who sends a request, for the audit log."""

from starlette.types import Scope

from api.runtime.api_keys import Caller
from jobs.audit import Actor, ActorKind, Via


def unknown_actor(connection: Scope) -> Actor:
    """Describe one who has not signed in to the console yet."""
    return Actor(
        ActorKind.UNKNOWN,
        "",
        Via.CONSOLE,
        request_id=connection.get("state", {}).get("request_id"),
        address=_address(connection),
    )


def actor_with(connection: Scope, caller: Caller, via: Via) -> Actor:
    """Describe the one who sends this request with an API key, or is signed in with it."""
    return Actor(
        ActorKind.KEY,
        caller.key,
        via,
        tenant_id=caller.tenant_id,
        name=caller.key_name,
        request_id=connection.get("state", {}).get("request_id"),
        address=_address(connection),
    )


def _address(connection: Scope) -> str | None:
    client = connection.get("client")
    return None if client is None else str(client[0])
