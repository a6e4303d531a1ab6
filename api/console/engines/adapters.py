"""The adapters (LoRA) on the page of engines: those that the viewer may name, or all for operators."""

from dataclasses import dataclass
from uuid import UUID

from sqlalchemy.orm import Session

from jobs.adapters import registry
from jobs.adapters.offers import read_offer
from jobs.models import Address


@dataclass(frozen=True, slots=True)
class AdapterRow:
    """An adapter in the list.

    Attributes:
        why_not: why requests for it are refused now; None: they are not.
    """

    name: str
    format: str
    rank: int
    num_bytes: int
    why_not: str | None


def read_adapters(session: Session, *, served: str, tenant_id: UUID | None) -> list[AdapterRow]:
    """Read the registered adapters, by name.

    Args:
        session: one that sees the rows of all tenants.
        served: the model that is served even if no engine has registered.
        tenant_id: whose requests could name them; None: an operator looks.
    """
    offer = read_offer(session, served=served, tenant_id=tenant_id)
    found = [
        AdapterRow(name, each.format, each.rank, each.num_bytes, offer.why_not(name))
        for each in registry.every(session)
        if each.removed_at is None and (name := str(Address(each.model, each.name)))
    ]
    return [row for row in found if tenant_id is None or row.why_not is None]
