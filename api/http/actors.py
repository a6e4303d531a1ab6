"""Who sends a request, for the audit log."""

from dataclasses import replace
from uuid import UUID

from starlette.types import Scope

from api.runtime.api_keys import Caller
from jobs.audit import Actor, ActorKind, Via
from jobs.tenants.persons import Person


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
        ActorKind.PERSON if caller.is_person else ActorKind.KEY,
        caller.key,
        via,
        tenant_id=caller.tenant_id,
        name=caller.key_name,
        request_id=connection.get("state", {}).get("request_id"),
        address=_address(connection),
        key_id=caller.api_key_id,
    )


def person_actor(connection: Scope, person: Person, *, tenant_id: UUID) -> Actor:
    """Describe the person who signs in by this request."""
    return replace(
        unknown_actor(connection),
        kind=ActorKind.PERSON,
        id=person.public_id,
        name=person.name,
        tenant_id=tenant_id,
    )


def _address(connection: Scope) -> str | None:
    client = connection.get("client")
    return None if client is None else str(client[0])
