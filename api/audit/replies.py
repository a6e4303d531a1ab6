"""Entries of the audit log as their readers see them."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from api.http.fields import example
from api.http.identifiers import PageQuery
from api.http.replies import ListReply, page_example
from api.runtime.api_keys import Caller
from jobs import ids
from jobs.audit import Action, ActorKind, Via
from jobs.models import AuditEntry
from jobs.tenants.keys import Scope
from jobs.views import rfc3339

_ENTRY = {
    "id": "audit_019c2f3e5a4b7c8d9e0f1a2b3c4d5e6f",
    "object": "audit_entry",
    "at": "2026-11-23T12:00:00.000000Z",
    "action": "key.revoke",
    "object_id": "lb_3f9a1c2b4d5e6f70",
    "tenant_id": "tenant_019c2f3e5a4b7c8d9e0f1a2b3c4d5e6f",
    "actor": {"kind": "key", "id": "lb_8a7b6c5d4e3f2a1b", "name": "ops", "via": "api"},
    "request_id": "req_019c2f3e5a4b7c8d9e0f1a2b3c4d5e70",
    "address": "192.0.2.7",
    "details": {},
}


class AuditQuery(PageQuery):
    """Where to start the list, and which entries it has."""

    action: Action | None = Field(None, description="Only this action.")
    object_id: str | None = Field(
        None, max_length=300, pattern=r"^[^\x00-\x1f]*$", description="Only what was done to this object."
    )


class ActorReply(BaseModel):
    """Who made the change."""

    kind: ActorKind = Field(description="What `id` is; `unknown`: a sign-in that failed.")
    id: str | None = Field(
        description="An API key's public part; of a person `person_…`, of one who operates `operator_…`; or a"
        " user of the operating system, which operators alone read."
    )
    name: str = Field(description="The operator's name for the key, or the person's.")
    via: Via


class AuditReply(BaseModel):
    """A change that a caller or an operator made."""

    model_config = example(**_ENTRY)

    id: str
    object: Literal["audit_entry"]
    at: str = Field(description="When, by the database's clock.")
    action: str = Field(description="One of `Action`; a later release may add some.")
    object_id: str | None = Field(description="What was changed; null: nothing in particular.")
    tenant_id: str | None = Field(description="Whose log it is in; null: the operators' alone.")
    actor: ActorReply
    request_id: str | None = Field(description="As `x-request-id` of the response had it.")
    address: str | None = Field(
        description="From which the request came, as far as this server sees: behind a proxy, the proxy's."
        " Null for an operator of another tenant."
    )
    details: dict[str, Any] = Field(description="Facts about the change; never a secret or a prompt.")


class AuditListReply(ListReply[AuditReply]):
    """One page of the audit log."""

    model_config = page_example(_ENTRY)


def entry_object(entry: AuditEntry, reader: Caller) -> dict[str, Any]:
    """Render the entry: of operators of other tenants the reader sees less, unless it is one itself."""
    is_open = Scope.OPERATOR in reader.scopes or entry.actor_tenant_id == reader.tenant_id
    shows_id = is_open or entry.actor_kind in (ActorKind.KEY, ActorKind.PERSON)
    return {
        "id": ids.AUDIT.format(entry.id),
        "object": "audit_entry",
        "at": rfc3339(entry.at),
        "action": entry.action,
        "object_id": entry.object_id,
        "tenant_id": None if entry.tenant_id is None else ids.tenant_id(entry.tenant_id),
        "actor": {
            "kind": entry.actor_kind,
            "id": entry.actor_id or None if shows_id else None,
            "name": entry.actor_name,
            "via": entry.via,
        },
        "request_id": entry.request_id,
        "address": entry.address if is_open else None,
        "details": entry.details,
    }
