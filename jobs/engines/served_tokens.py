"""Tenants' accounts in the database: how much of a model each was served, and who is idle."""

from uuid import UUID

from sqlalchemy import CTE, Float, cast, func, literal, literal_column, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from jobs.database import advisory_locks
from jobs.database.advisory_locks import Lock
from jobs.models import Job, Tenant, TenantAccount


def serialize(session: Session) -> None:
    """Let no other transaction write to several accounts until this one ends.

    Taken after the engine's row, here as everywhere: one order, no deadlock.
    """
    advisory_locks.hold(session, Lock.ACCOUNTS)


def charge(session: Session, tenant_id: UUID, model: str, num_tokens: int) -> None:
    """Charge an account with these tokens; see `fair_share.charge`.

    If the account is not active yet, this activates it: a prefetched job may start before any ranking reads
    the queue.
    """
    weight = select(Tenant.weight).where(Tenant.id == tenant_id).scalar_subquery()
    charged = session.scalar(
        update(TenantAccount)
        .where(
            TenantAccount.tenant_id == tenant_id,
            TenantAccount.model == model,
            TenantAccount.is_active,
        )
        .values(served=TenantAccount.served + literal(num_tokens, Float) / weight)
        .returning(TenantAccount.tenant_id)
        .execution_options(synchronize_session=False)
    )
    if charged is None:
        _activate_charged(session, tenant_id, model, num_tokens)


def settle(session: Session, released: CTE, *, produced: int | None = None) -> None:
    """Correct accounts from what reservations covered to what jobs generated.

    Args:
        session: the caller's transaction.
        released: a statement that takes reservations out of the state `held` and returns their `job_id` and
            `output_tokens`; it is executed in any case.
        produced: tokens that their one job has generated in all; None: what its row says.
    """
    generated = Job.completion_tokens if produced is None else literal(produced)
    session.execute(
        update(TenantAccount)
        .where(
            Job.id == released.c.job_id,
            Tenant.id == Job.tenant_id,
            TenantAccount.tenant_id == Job.tenant_id,
            TenantAccount.model == Job.model,
        )
        .values(
            served=TenantAccount.served + cast(generated - released.c.output_tokens, Float) / Tenant.weight
        )
        .execution_options(synchronize_session=False)
    )


def _activate_charged(session: Session, tenant_id: UUID, model: str, num_tokens: int) -> None:
    """Lift an idle or new account to the least served active one, and charge it."""
    others = TenantAccount.__table__.alias()
    least = func.coalesce(
        select(func.min(others.c.served))
        .where(others.c.model == model, others.c.is_active)
        .scalar_subquery(),
        literal(0, Float),
    )
    price = literal(num_tokens, Float) / Tenant.weight
    opened = select(Tenant.id, literal(model), least + price, literal_column("true")).where(
        Tenant.id == tenant_id
    )
    statement = insert(TenantAccount).from_select(["tenant_id", "model", "served", "is_active"], opened)
    # What the row holds above the least served still counts; the price comes on top.
    served = statement.excluded.served + func.greatest(TenantAccount.served - least, literal(0, Float))
    session.execute(
        statement.on_conflict_do_update(
            index_elements=["tenant_id", "model"], set_={"served": served, "is_active": True}
        )
    )
