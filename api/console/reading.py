"""How pages read: a tenant's viewer its own rows behind both walls, an operator those of all tenants."""

from collections.abc import Callable
from typing import TypeVar
from uuid import UUID

from sqlalchemy.orm import Session

from api.console.session import Viewer
from api.runtime.services import Services

T = TypeVar("T")


async def read_for(viewer: Viewer, services: Services, verb: Callable[[Session], T]) -> T:
    """Run a verb that reads rows of the viewer's tenant, or of all tenants if the viewer is an operator.

    The verb names the tenant in its conditions too, except for operators: see `tenant_of`.
    """
    if viewer.is_operator:
        return await services.transactions.run_across(verb)
    return await services.transactions.run(verb)


def tenant_of(viewer: Viewer) -> UUID | None:
    """Return the tenant whose rows the viewer sees; None: those of all."""
    return None if viewer.is_operator else viewer.caller.tenant_id
