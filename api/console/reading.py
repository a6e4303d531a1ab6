"""How pages read: a tenant's viewer its own rows behind both walls, an operator those of all tenants."""

from collections.abc import Callable, Iterable
from typing import TypeVar
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import InstrumentedAttribute, Session

from api.console.session import Viewer
from api.runtime.services import Services
from jobs import tenants
from jobs.errors import NotFoundError

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


def owner_of(
    session: Session,
    viewer: Viewer,
    row_id: UUID,
    *,
    of: tuple[InstrumentedAttribute[UUID], InstrumentedAttribute[UUID]],
) -> UUID:
    """Find whose row of this id it is that the viewer may see, for verbs that want to know its tenant.

    Args:
        session: of `read_for`.
        viewer: anyone; only operators reach rows of other tenants.
        row_id: of the row; for others than operators it need not exist.
        of: the columns of its table that hold its id and its tenant's.

    Raises:
        NotFoundError: there is no such row.
    """
    if not viewer.is_operator:
        return viewer.caller.tenant_id
    key, tenant = of
    owner = session.scalar(select(tenant).where(key == row_id))
    if owner is None:
        raise NotFoundError
    return owner


def tenant_names(session: Session, viewer: Viewer, tenant_ids: Iterable[UUID | None]) -> dict[UUID, str]:
    """Read the names of these tenants for an operator; all others see their own rows alone."""
    if not viewer.is_operator:
        return {}
    return tenants.read_names(session, {each for each in tenant_ids if each is not None})
