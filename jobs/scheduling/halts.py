"""Halts: operators' orders that an engine, or a tenant's queue, starts no job until it is resumed.

A halt is part of a row that every claim reads anyway: it holds whatever process is killed, from the next tick
of each worker on. Running jobs go on; those that leave before their end wait like all others.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import ColumnElement, func, select, update
from sqlalchemy.orm import Session

from jobs import audit, ids
from jobs.audit import Action
from jobs.errors import ConflictError, NotFoundError
from jobs.models import ApiKey, Engine, Job, Reservation, Tenant
from jobs.models.halt import Haltable
from jobs.states.halt import HaltKind
from jobs.tenants import keys, persons
from jobs.tenants.keys import Scope

MAX_REASON_CHARS = 300


@dataclass(frozen=True, slots=True)
class Operator:
    """The one who orders.

    Attributes:
        key: the public part of the API key, `lb_…`; None: the command line.
        name: of the key, which may be empty.
    """

    key: str | None = None
    name: str = "the command line"


@dataclass(frozen=True, slots=True)
class Halt:
    """An order that holds.

    Attributes:
        since: when jobs ceased to start, by the database's clock.
    """

    kind: HaltKind
    reason: str
    by: Operator
    since: datetime

    @property
    def in_words(self) -> str:
        """Who ordered it, and why: `paused by ops: new driver`."""
        return f"paused by {self.by.name or self.by.key}: {self.reason}"


def halt_of(row: Haltable) -> Halt | None:
    """Read the halt of an engine or a tenant's queue; None: it starts jobs."""
    if row.halt is None or row.halted_since is None:
        return None
    by = Operator(row.halted_by, row.halted_by_name or "")
    return Halt(HaltKind(row.halt), row.halted_reason or "", by, row.halted_since)


def halt_engine(session: Session, name: str, kind: HaltKind, *, reason: str, by: Operator) -> None:
    """Start no job on this engine from now on, until it is resumed.

    Waits for a claim that is under way. A second order replaces kind, reason and operator of the first.

    Raises:
        NotFoundError: no engine of this name has registered.
    """
    _halt(session, Engine, Engine.name == name, kind, reason=reason, by=by)
    audit.note(session, Action(f"engine.{kind}"), name, tenant_id=None, reason=reason)


def resume_engine(session: Session, name: str) -> None:
    """Let the engine start jobs again; raises as `halt_engine` does."""
    _write(session, Engine, Engine.name == name, dict.fromkeys(_COLUMNS))
    audit.note(session, Action.ENGINE_RESUME, name, tenant_id=None)


def halt_queue(session: Session, tenant_id: UUID, kind: HaltKind, *, reason: str, by: Operator) -> None:
    """Start no job of this tenant from now on, until its queue is resumed.

    Its jobs are accepted and wait, and hold up no other tenant's. Only a claim that is under way on some
    engine may still start one.

    Raises:
        NotFoundError: there is no such tenant.
        ConflictError: it is being deleted, so its queue is halted for good.
    """
    _refuse_if_deleted(session, tenant_id)
    _halt(session, Tenant, Tenant.id == tenant_id, kind, reason=reason, by=by)
    named = ids.tenant_id(tenant_id)
    audit.note(session, Action(f"queue.{kind}"), named, tenant_id=tenant_id, reason=reason)


def resume_queue(session: Session, tenant_id: UUID) -> None:
    """Let the tenant's jobs start again; raises as `halt_queue` does."""
    _refuse_if_deleted(session, tenant_id)
    _write(session, Tenant, Tenant.id == tenant_id, dict.fromkeys(_COLUMNS))
    audit.note(session, Action.QUEUE_RESUME, ids.tenant_id(tenant_id), tenant_id=tenant_id)


def lock_queue(session: Session, tenant_id: UUID, *, may_override: bool) -> Tenant:
    """Lock the tenant's row before one of its keys changes the halt.

    Args:
        session: the caller's transaction.
        tenant_id: of the key.
        may_override: the key is an operator's. Others change only what such a key of the tenant ordered.

    Raises:
        ConflictError: an operator halted the queue.
    """
    # Jobs that are inserted meanwhile lock the row's key, and do not wait.
    query = select(Tenant).where(Tenant.id == tenant_id).with_for_update(key_share=True)
    row = session.scalars(query.execution_options(populate_existing=True)).one()
    if row.halt is not None and not may_override:
        if (row.halted_by or "").startswith(persons.OF_TENANT):
            return row
        handle = (row.halted_by or "").removeprefix(keys.PREFIX)
        scopes = session.scalar(
            select(ApiKey.scopes).where(ApiKey.handle == handle, ApiKey.tenant_id == tenant_id)
        )
        if scopes is None or Scope.OPERATOR in scopes:
            raise ConflictError(f"An operator paused this queue: {row.halted_reason}")
    return row


def halted_queues(session: Session) -> dict[UUID, Halt]:
    """Read the halts of all tenants' queues."""
    rows = session.scalars(select(Tenant).where(Tenant.halt.is_not(None)))
    return {row.id: found for row in rows if (found := halt_of(row)) is not None}


def count_running(session: Session, tenant_ids: Collection[UUID]) -> dict[UUID, int]:
    """Count the reservations of these tenants' jobs on all engines; omits tenants without any."""
    rows = session.execute(
        select(Job.tenant_id, func.count())
        .join(Reservation, Reservation.job_id == Job.id)
        .where(Job.tenant_id.in_(tenant_ids))
        .group_by(Job.tenant_id)
    )
    return dict(rows.all())


def _refuse_if_deleted(session: Session, tenant_id: UUID) -> None:
    """Raise ConflictError if the tenant's deletion was ordered; otherwise the order waits for this change."""
    mine = select(Tenant.deleted_at).where(Tenant.id == tenant_id).with_for_update(key_share=True)
    if session.scalar(mine) is not None:
        raise ConflictError("The tenant is being deleted; its queue stays paused.")


_COLUMNS = ("halt", "halted_reason", "halted_by", "halted_by_name", "halted_since")


def _halt(
    session: Session,
    table: type[Engine | Tenant],
    which: ColumnElement[bool],
    kind: HaltKind,
    *,
    reason: str,
    by: Operator,
) -> None:
    values = {
        "halt": kind.value,
        "halted_reason": reason,
        "halted_by": by.key,
        "halted_by_name": by.name,
        "halted_since": func.coalesce(table.halted_since, func.clock_timestamp()),
    }
    _write(session, table, which, values)


def _write(
    session: Session,
    table: type[Engine | Tenant],
    which: ColumnElement[bool],
    values: Mapping[str, object],
) -> None:
    changed = update(table).where(which).values(values).returning(table.halt)
    if session.execute(changed).one_or_none() is None:
        raise NotFoundError(f"There is no such {'engine' if table is Engine else 'tenant'}.")
