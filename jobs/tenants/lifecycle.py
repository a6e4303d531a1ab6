"""Tenants: create and list them, set their limits and weights."""

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Final
from uuid import UUID

from sqlalchemy import select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from jobs import audit, ids
from jobs.audit import Action
from jobs.audit.log import Detail
from jobs.database import paging
from jobs.database.paging import Page
from jobs.errors import AlreadyExistsError, InvalidRequestError, NotFoundError
from jobs.ids import uuid7
from jobs.models import Tenant
from jobs.models.tenant import TenantLimit

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def create(session: Session, name: str) -> Tenant:
    """Create a tenant without keys.

    Raises:
        InvalidRequestError: the name breaks the rules for names.
        AlreadyExistsError: it is taken.
    """
    if not _NAME.fullmatch(name):
        raise InvalidRequestError(
            "A tenant's name has 1 to 63 of the characters a-z A-Z 0-9 . _ -", param="name"
        )
    made = insert(Tenant).values(id=uuid7(), name=name).on_conflict_do_nothing().returning(Tenant)
    row = session.scalar(made)
    if row is None:
        raise AlreadyExistsError(f"A tenant named {name!r} already exists.", param="name")
    audit.note(session, Action.TENANT_CREATE, ids.tenant_id(row.id), tenant_id=row.id, name=name)
    return row


def named(session: Session, name: str) -> Tenant:
    """Find the tenant of this name.

    Raises:
        NotFoundError: there is none.
    """
    row = session.scalar(select(Tenant).where(Tenant.name == name))
    if row is None:
        raise NotFoundError(f"There is no tenant {name!r}; `longbatch tenants list` shows them.")
    return row


def read_names(session: Session, tenant_ids: Collection[UUID]) -> dict[UUID, str]:
    """Read the names of these tenants."""
    rows = session.execute(select(Tenant.id, Tenant.name).where(Tenant.id.in_(tenant_ids)))
    return {row.id: row.name for row in rows}


def find(session: Session, text: str) -> Tenant:
    """Find the tenant of this id (`tenant_…`) or name.

    Raises:
        NotFoundError: there is none.
    """
    with suppress(NotFoundError):
        row = session.get(Tenant, ids.parse_tenant_id(text))
        if row is not None:
            return row
    row = session.scalar(select(Tenant).where(Tenant.name == text)) if _NAME.fullmatch(text) else None
    if row is None:
        raise NotFoundError("There is no such tenant.")
    return row


def list_tenants(session: Session) -> Sequence[tuple[Tenant, TenantLimit | None]]:
    """List every tenant, oldest first, with its own limits if it has any."""
    query = select(Tenant, TenantLimit).outerjoin(TenantLimit, TenantLimit.tenant_id == Tenant.id)
    return [(tenant, limit) for tenant, limit in session.execute(query.order_by(Tenant.id))]


def read_page(session: Session, *, after: UUID | None, limit: int) -> Page[Tenant]:
    """List a page of tenants, newest first.

    Raises:
        InvalidRequestError: there is no tenant of the id in `after`.
    """
    return paging.read_ids(session, select(Tenant), Tenant.id, after=after, limit=limit, kind="tenant")


def set_weight(session: Session, tenant_id: UUID, weight: float | None) -> None:
    """Set the tenant's share of an engine; None leaves it as it is."""
    if weight is None:
        return
    changed = update(Tenant).where(Tenant.id == tenant_id, Tenant.weight != weight).values(weight=weight)
    if session.scalar(changed.returning(Tenant.id)) is not None:
        _note(session, Action.TENANT_SET_WEIGHT, tenant_id, weight=weight)


def set_retention(session: Session, tenant_id: UUID, seconds: int | None) -> None:
    """Let content go once it was delivered, at the latest after so long; None: it stays."""
    differs = Tenant.zero_retention_seconds.is_distinct_from(seconds)
    changed = update(Tenant).where(Tenant.id == tenant_id, differs).values(zero_retention_seconds=seconds)
    if session.scalar(changed.returning(Tenant.id)) is not None:
        _note(session, Action.TENANT_SET_RETENTION, tenant_id, zero_retention_seconds=seconds)


def set_limits(session: Session, tenant_id: UUID, values: Mapping[str, int | None]) -> None:
    """Set these limits of the tenant and leave the others; None: the setting holds.

    Args:
        session: the caller's transaction.
        tenant_id: the tenant.
        values: by the names of `TenantLimit`.
    """
    if values:
        session.execute(
            insert(TenantLimit)
            .values(tenant_id=tenant_id, **values)
            .on_conflict_do_update(index_elements=["tenant_id"], set_=dict(values))
        )
        _note(session, Action.TENANT_SET_LIMITS, tenant_id, **values)


def set_adapters(session: Session, tenant_id: UUID, names: Sequence[str] | None) -> None:
    """Let the tenant name these adapters alone, each as `model:name`; None: all."""
    values = {"adapters": None if names is None else list(names)}
    session.execute(
        insert(TenantLimit)
        .values(tenant_id=tenant_id, **values)
        .on_conflict_do_update(index_elements=["tenant_id"], set_=values)
    )
    _note(session, Action.TENANT_SET_ADAPTERS, tenant_id, adapters=names)


def _note(session: Session, action: Action, tenant_id: UUID, **details: Detail) -> None:
    audit.note(session, action, ids.tenant_id(tenant_id), tenant_id=tenant_id, **details)
