"""Tenants' accounts in the database: who was served how much of a model, and who is idle."""

from uuid import UUID

from sqlalchemy import CTE, Float, cast, func, literal, literal_column, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from jobs.database import advisory_locks
from jobs.database.advisory_locks import Lock
from jobs.models import Job, Tenant, TenantAccount


def serialize(session: Session) -> None:
    """Nobody else writes to several accounts until this transaction has ended; taken behind engines' rows."""
    advisory_locks.hold(session, Lock.ACCOUNTS)


def charge(session: Session, tenant_id: UUID, model: str, num_tokens: int) -> None:
    """Charge an account with so many tokens; see `fair_share.charge`.

    An account that no look at the queue has taken up yet is taken up here: who was foreseen may start before.
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
        _take_up_charged(session, tenant_id, model, num_tokens)


def settle(session: Session, released: CTE, *, produced: int | None = None) -> None:
    """Bookings are held no more, and accounts say what their jobs really produced, not what was booked.

    Args:
        session: the caller's transaction.
        released: a statement that takes bookings out of the state `held`, returning their `job_id` and
            `output_tokens`; it is executed in any case.
        produced: tokens that the one job of them has generated in all; None: what its row says.
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


def _take_up_charged(session: Session, tenant_id: UUID, model: str, num_tokens: int) -> None:
    """Lift an idle or new account as `sync_active_tenants` does, then charge it."""
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
    # What the row holds beyond the least counts as before, and the price on top.
    served = statement.excluded.served + func.greatest(TenantAccount.served - least, literal(0, Float))
    session.execute(
        statement.on_conflict_do_update(
            index_elements=["tenant_id", "model"], set_={"served": served, "is_active": True}
        )
    )
