"""Deletion of a tenant: an order first, then bounded parts until nothing of it is left.

Each part is one transaction of a service worker, and looks for itself at what is left. So a process that is
killed at any statement loses one part at most, and any worker does it again.
"""

from typing import Final
from uuid import UUID

from sqlalchemy import Select, func, literal, select, union_all, update
from sqlalchemy.orm import Session

from jobs import audit, ids, telemetry
from jobs.audit import Action
from jobs.erasure import parts
from jobs.erasure.parts import Part, Stores
from jobs.errors import ConflictError
from jobs.models import DEFAULT_TENANT, ApiKey, Base, Job, Tenant, WebhookEvent
from jobs.models.tenant import FORMER_TENANTS
from jobs.scheduling import halts
from jobs.scheduling.halts import Operator
from jobs.states.halt import HaltKind

REASON: Final = "The tenant is being deleted."
# No tenant that is created can have it.
_FORMER_NAME: Final = "(deleted tenants)"
# The last statement reads every row of the tables in which no index finds rows by their tenant.
_LAST_STATEMENT: Final = "SET LOCAL statement_timeout = '30min'"


def order(session: Session, tenant: Tenant, *, by: Operator) -> Tenant:
    """Order the tenant's deletion: its keys cease to work, and none of its jobs starts any more.

    Another order changes nothing. There is no way back.

    Raises:
        ConflictError: it is the default tenant, or the one that has the usage of deleted tenants.
    """
    if tenant.id in (DEFAULT_TENANT, FORMER_TENANTS):
        raise ConflictError("This tenant belongs to the installation and cannot be deleted.")
    query = select(Tenant).where(Tenant.id == tenant.id).with_for_update(key_share=True)
    row = session.scalars(query.execution_options(populate_existing=True)).one()
    if row.deleted_at is None:
        halts.halt_queue(session, row.id, HaltKind.PAUSE, reason=REASON, by=by)
        valid = (ApiKey.tenant_id == row.id, ApiKey.revoked_at.is_(None))
        session.execute(update(ApiKey).where(*valid).values(revoked_at=func.clock_timestamp()))
        session.execute(update(Tenant).where(Tenant.id == row.id).values(deleted_at=func.clock_timestamp()))
        # Not in the tenant's own log, which goes with it.
        audit.note(session, Action.TENANT_DELETE, ids.tenant_id(row.id), tenant_id=None)
        session.refresh(row)
    return row


def ordered() -> Select[UUID]:
    """Select the tenants whose deletion was ordered, oldest order first."""
    return select(Tenant.id).where(Tenant.deleted_at.is_not(None)).order_by(Tenant.deleted_at)


def remove_part(session: Session, tenant_id: UUID, stores: Stores, *, keeps_usage: bool) -> Part | None:
    """Remove some rows of a tenant whose deletion was ordered, and at last the tenant.

    Args:
        session: the caller's transaction.
        tenant_id: the tenant.
        stores: what the tenant has outside of the database.
        keeps_usage: its usage by day goes to `FORMER_TENANTS`, without its name and id.

    Returns:
        What was done; None: nothing now, as another worker does it, or its jobs still end.
    """
    # Whatever else writes rows of the tenant does not wait for this lock.
    query = select(Tenant).where(Tenant.id == tenant_id, Tenant.deleted_at.is_not(None))
    tenant = session.scalar(query.with_for_update(key_share=True, skip_locked=True))
    if tenant is None:
        return None
    if keeps_usage:
        _ensure_former(session)
    usage_to = FORMER_TENANTS if keeps_usage else None
    for step in parts.STEPS:
        part = step(session, tenant, stores, usage_to)
        if part.is_work:
            tenant.num_removed += part.num_removed
            session.flush()
            return part
    return _remove_last(session, tenant, stores)


def _remove_last(session: Session, tenant: Tenant, stores: Stores) -> Part | None:
    """Remove the tenant itself, unless it has rows: then later parts remove these."""
    if session.scalar(select(Job.id).where(Job.tenant_id == tenant.id).limit(1)) is not None:
        return None  # one that runs
    session.connection().exec_driver_sql(_LAST_STATEMENT)
    # From here on nobody can insert a row that refers to it.
    session.execute(select(Tenant.id).where(Tenant.id == tenant.id).with_for_update())
    if left := _left(session, tenant.id):
        # Such as what a request inserted that began before its key was revoked.
        if WebhookEvent.__tablename__ in left:
            tenant.searched_to = None
        telemetry.logger().info(
            telemetry.TENANT_DELETION_WAITS, tenant_id=ids.tenant_id(tenant.id), tables=left
        )
        return None
    stores.forget_tenant(tenant.id)
    session.delete(tenant)
    session.flush()
    return Part(num_removed=1, is_last=True)


def _left(session: Session, tenant_id: UUID) -> list[str]:
    """Name the tables that have rows of the tenant."""
    owned = [table for table in Base.metadata.sorted_tables if "tenant_id" in table.columns]
    found = [
        select(literal(table.name)).where(
            select(table.c.tenant_id).where(table.c.tenant_id == tenant_id).exists()
        )
        for table in owned
    ]
    return sorted(session.scalars(union_all(*found)))


def _ensure_former(session: Session) -> None:
    """Create the tenant that has the usage of deleted ones, if it is the first time."""
    if session.get(Tenant, FORMER_TENANTS) is None:
        session.add(Tenant(id=FORMER_TENANTS, name=_FORMER_NAME))
        session.flush()
