"""Replies about tenants' queues, modelled for the API documentation."""

from typing import Any, Final, Literal

from pydantic import Field
from sqlalchemy.orm import Session

from api.http.fields import example
from api.http.halts import PAUSED, HaltReply, halt_object
from jobs import ids
from jobs.models import Tenant
from jobs.scheduling import halts

_QUEUE: Final[dict[str, Any]] = {
    "object": "queue",
    "tenant_id": "tenant_019c2f3e5a4b7c8d9e0f1a2b3c4d5e6f",
    "tenant": "acme",
    **PAUSED,
    "num_running": 2,
}


class QueueStateReply(HaltReply):
    """Whether the jobs of a tenant start."""

    model_config = example(**_QUEUE)

    object: Literal["queue"]
    tenant_id: str
    tenant: str = Field(description="The tenant's name.")
    num_running: int = Field(description="Requests of its jobs that may still run on an engine.")


def queue_object(session: Session, tenant: Tenant) -> dict[str, Any]:
    """Read what runs of the tenant, and convert its queue to the shape that operators see."""
    num_running = halts.count_running(session, [tenant.id]).get(tenant.id, 0)
    return {
        "object": "queue",
        "tenant_id": ids.tenant_id(tenant.id),
        "tenant": tenant.name,
        **halt_object(halts.halt_of(tenant), num_running=num_running),
        "num_running": num_running,
    }
