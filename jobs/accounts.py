"""Tenants' accounts in the database: who was served how much of a model, and who is idle."""

from collections.abc import Collection
from uuid import UUID

from sqlalchemy import Float, and_, func, literal, literal_column, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from jobs.fair_share import Account, lift
from jobs.models import Job, Reservation, Tenant, TenantAccount


def read(session: Session, model: str, waiting: Collection[UUID]) -> dict[UUID, Account]:
    """The accounts of tenants with queued jobs; who was idle stands where the least served of the others is.

    Args:
        session: nothing is written.
        model: that is served.
        waiting: the tenants with a queued job for it.
    """
    accounts, idle = _known(session, model, waiting)
    return _lifted(accounts, idle)


def take_up(session: Session, model: str, waiting: Collection[UUID]) -> dict[UUID, Account]:
    """As `read`, and written down: who came back from idleness is lifted, who left is idle from now on."""
    accounts, idle = _known(session, model, waiting)
    gone = accounts.keys() - set(waiting)
    if gone:
        _leave(session, model, gone)
    lifted = _lifted(accounts, idle)
    for tenant_id in sorted(idle):
        statement = insert(TenantAccount).values(
            tenant_id=tenant_id, model=model, served=lifted[tenant_id].served, is_active=True
        )
        served = func.greatest(TenantAccount.served, statement.excluded.served)
        session.execute(
            statement.on_conflict_do_update(
                index_elements=["tenant_id", "model"], set_={"served": served, "is_active": True}
            )
        )
    return lifted


def charge(session: Session, tenant_id: UUID, model: str, num_tokens: int) -> None:
    """So many tokens more, or fewer, stand on the account; see `fair_share.charge`."""
    weight = select(Tenant.weight).where(Tenant.id == tenant_id).scalar_subquery()
    session.execute(
        update(TenantAccount)
        .where(TenantAccount.tenant_id == tenant_id, TenantAccount.model == model)
        .values(served=TenantAccount.served + literal(num_tokens, Float) / weight)
        .execution_options(synchronize_session=False)
    )


def settle(session: Session, booking: Reservation, *, produced: int | None = None) -> None:
    """The account says what the job really produced, not what was booked; once for each booking.

    Args:
        session: the caller's transaction, in which the booking stops being held.
        booking: as it was while it was held.
        produced: tokens that the job has generated in all; None: what its row says.
    """
    job = session.execute(
        select(Job.tenant_id, Job.model, Job.completion_tokens).where(Job.id == booking.job_id)
    ).one_or_none()
    if job is None:
        return  # it was deleted while its request drained
    over = booking.output_tokens - (job.completion_tokens if produced is None else produced)
    if over:
        charge(session, job.tenant_id, job.model, -over)


def _known(session: Session, model: str, waiting: Collection[UUID]) -> tuple[dict[UUID, Account], set[UUID]]:
    """The accounts of tenants that wait or are active, and which of those that wait were idle."""
    rows = session.execute(
        select(Tenant.id, Tenant.weight, TenantAccount.served, TenantAccount.is_active)
        .outerjoin(TenantAccount, and_(TenantAccount.tenant_id == Tenant.id, TenantAccount.model == model))
        .where(or_(Tenant.id.in_(waiting), TenantAccount.is_active))
    ).all()
    accounts = {row.id: Account(weight=row.weight, served=row.served or 0.0) for row in rows}
    return accounts, {row.id for row in rows if not row.is_active}


def _lifted(accounts: dict[UUID, Account], idle: set[UUID]) -> dict[UUID, Account]:
    active = [account for tenant_id, account in accounts.items() if tenant_id not in idle]
    return {
        tenant_id: lift(account, active) if tenant_id in idle else account
        for tenant_id, account in accounts.items()
    }


def _leave(session: Session, model: str, tenants: Collection[UUID]) -> None:
    """Those of them with nothing on any engine either are idle."""
    running = select(Job.tenant_id).where(Job.state == literal_column("'running'"), Job.model == model)
    session.execute(
        update(TenantAccount)
        .where(
            TenantAccount.model == model,
            TenantAccount.tenant_id.in_(sorted(tenants)),
            TenantAccount.tenant_id.not_in(running),
        )
        .values(is_active=False)
        .execution_options(synchronize_session=False)
    )
