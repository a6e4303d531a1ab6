"""Tenants: made, listed, and given limits and a weight of their own."""

import re
from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

from sqlalchemy import select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from jobs.errors import AlreadyExistsError, InvalidRequestError, NotFoundError
from jobs.ids import uuid7
from jobs.models import Tenant
from jobs.models.tenant import TenantLimit

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def create(session: Session, name: str) -> Tenant:
    """A new tenant without keys.

    Raises:
        InvalidRequestError: the name is no name.
        AlreadyExistsError: it is taken.
    """
    if not _NAME.fullmatch(name):
        raise InvalidRequestError("a tenant's name has up to 63 of a-z A-Z 0-9 . _ -", param="name")
    made = insert(Tenant).values(id=uuid7(), name=name).on_conflict_do_nothing().returning(Tenant)
    row = session.scalar(made)
    if row is None:
        raise AlreadyExistsError(f"there is a tenant {name!r} already", param="name")
    return row


def named(session: Session, name: str) -> Tenant:
    """The tenant of this name.

    Raises:
        NotFoundError: there is none.
    """
    row = session.scalar(select(Tenant).where(Tenant.name == name))
    if row is None:
        raise NotFoundError(f"there is no tenant {name!r}; `longbatch tenants list` shows them")
    return row


def list_tenants(session: Session) -> Sequence[tuple[Tenant, TenantLimit | None]]:
    """Every tenant, oldest first, with its own limits if it has any."""
    query = select(Tenant, TenantLimit).outerjoin(TenantLimit, TenantLimit.tenant_id == Tenant.id)
    return [(tenant, limit) for tenant, limit in session.execute(query.order_by(Tenant.id))]


def set_weight(session: Session, tenant_id: UUID, weight: float | None) -> None:
    """The tenant's share of an engine is this one; None: it stays."""
    if weight is not None:
        session.execute(update(Tenant).where(Tenant.id == tenant_id).values(weight=weight))


def set_limits(session: Session, tenant_id: UUID, values: Mapping[str, int | None]) -> None:
    """These limits hold for the tenant from now on, others stay; None: as the settings say.

    Args:
        session: the caller's transaction.
        tenant_id: whose.
        values: by the names of `TenantLimit`.
    """
    if values:
        session.execute(
            insert(TenantLimit)
            .values(tenant_id=tenant_id, **values)
            .on_conflict_do_update(index_elements=["tenant_id"], set_=dict(values))
        )
