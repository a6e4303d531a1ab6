"""Tenants' accounts in the database: how much of a model each was served, and who is idle.

An account is a row of its own, written when a tenant comes or goes, and one row for each engine that served
the tenant. Only transactions on an engine write that engine's rows, and they hold the engine's row if they
write several: claims on different engines never wait for each other.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Final
from uuid import UUID

from sqlalchemy import (
    Float,
    Select,
    Text,
    Uuid,
    bindparam,
    func,
    select,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, insert
from sqlalchemy.orm import Session

from jobs.database import advisory_locks, statements
from jobs.database.advisory_locks import Lock
from jobs.database.statements import Statement
from jobs.models import AccountShard, Tenant, TenantAccount

_CHARGE = text("""
    INSERT INTO account_shards AS shard (tenant_id, model, engine_name, served)
    SELECT tenants.id, given.model, :engine_name, given.num_tokens / tenants.weight
    FROM unnest(:tenant_ids, :models, :num_tokens) AS given(tenant_id, model, num_tokens)
    JOIN tenants ON tenants.id = given.tenant_id
    ORDER BY tenants.id, given.model
    ON CONFLICT (tenant_id, model, engine_name) DO UPDATE SET served = shard.served + excluded.served
    RETURNING shard.tenant_id, shard.model, EXISTS (
        SELECT FROM accounts
        WHERE accounts.tenant_id = shard.tenant_id AND accounts.model = shard.model AND accounts.is_active
    )
""").bindparams(
    bindparam("tenant_ids", type_=ARRAY(Uuid)),
    bindparam("models", type_=ARRAY(Text)),
    bindparam("num_tokens", type_=ARRAY(Float(53))),
)


# An engine that comes back simply begins a row anew: the sum is the same. Materialized: a plan that evaluated
# the subquery for each row would pass the limit.
_FOLD = text("""
    WITH dead AS MATERIALIZED (
        SELECT tenant_id, model, engine_name FROM account_shards AS shard
        WHERE NOT EXISTS (
            SELECT FROM engines
            WHERE engines.name = shard.engine_name AND engines.model = shard.model AND seen_at > :since
        )
        LIMIT :limit FOR UPDATE SKIP LOCKED
    ), folded AS (
        DELETE FROM account_shards USING dead
        WHERE (account_shards.tenant_id, account_shards.model, account_shards.engine_name)
            = (dead.tenant_id, dead.model, dead.engine_name)
        RETURNING account_shards.tenant_id, account_shards.model, served
    ), sums AS (
        INSERT INTO accounts AS account (tenant_id, model, served)
        SELECT tenant_id, model, sum(served) FROM folded GROUP BY 1, 2 ORDER BY 1, 2
        ON CONFLICT (tenant_id, model) DO UPDATE SET served = account.served + excluded.served
    )
    SELECT count(*) FROM folded
""")


def served(session: Session, tenant_id: UUID, model: str) -> float:
    """Read what the tenant was served of this model, by all engines, and lifted by."""
    mine = _totals(model).where(TenantAccount.tenant_id == tenant_id).subquery()
    return session.scalar(select(mine.c.served)) or 0.0


def charge(session: Session, engine_name: str, charges: Mapping[tuple[UUID, str], float]) -> None:
    """Charge accounts, by tenant and model, with tokens on this engine; see `fair_share.charge`.

    If an account is not active yet, this activates it: another transaction may have held the accounts while
    the queue was ranked.
    """
    if not charges:
        return
    rows = session.execute(
        _CHARGE,
        {
            "engine_name": engine_name,
            "tenant_ids": [tenant_id for tenant_id, _ in charges],
            "models": [model for _, model in charges],
            "num_tokens": list(charges.values()),
        },
    ).all()
    for tenant_id, model, is_active in rows:
        if not is_active:
            activate_charged(session, tenant_id, model, num_tokens=charges[tenant_id, model])


def fold(session: Session, *, before: datetime, limit: int = 1000) -> int:
    """Add the rows of engines that are gone to their accounts, which count the same as before.

    Gone: not seen since `before`, or another model's by now. Does nothing while another transaction holds the
    lock on accounts.

    Returns:
        How many rows it removed.
    """
    if not advisory_locks.try_hold(session, Lock.ACCOUNTS):
        return 0
    return session.scalar(_FOLD, {"since": before, "limit": limit}) or 0


def activate_free(session: Session, model: str, lifted_by: Mapping[UUID, float]) -> None:
    """Mark these tenants' accounts active and lift them, unless another transaction does so."""
    tenants = sorted(lifted_by)
    given = {
        "key": Lock.ACCOUNTS.value,
        "tenant_ids": tenants,
        "model": model,
        "lifted_by": [lifted_by[each] for each in tenants],
    }
    statements.fetch(session, _ACTIVATE, given)


_ACTIVATE: Final = Statement("""
    WITH held AS MATERIALIZED (SELECT pg_try_advisory_xact_lock(%(key)s::bigint) AS is_held)
    INSERT INTO accounts AS account (tenant_id, model, served, is_active)
    SELECT given.tenant_id, %(model)s::text, given.lifted_by, true
    FROM held, unnest(%(tenant_ids)s::uuid[], %(lifted_by)s::float8[]) AS given(tenant_id, lifted_by)
    WHERE held.is_held
    ON CONFLICT (tenant_id, model) DO UPDATE SET served = account.served + excluded.served, is_active = true
        WHERE NOT account.is_active
    """)


def activate(session: Session, tenant_id: UUID, model: str, *, lifted_by: float) -> None:
    """Mark the account active and lift it, unless another transaction did both already.

    The caller holds the lock on accounts.
    """
    statement = insert(TenantAccount).values(
        tenant_id=tenant_id, model=model, served=lifted_by, is_active=True
    )
    session.execute(
        statement.on_conflict_do_update(
            index_elements=["tenant_id", "model"],
            set_={"served": TenantAccount.served + statement.excluded.served, "is_active": True},
            where=~TenantAccount.is_active,
        )
    )


def activate_charged(session: Session, tenant_id: UUID, model: str, *, num_tokens: float) -> None:
    """Lift an idle or new account to the least served active one; it was charged these tokens already.

    What it holds above the least served still counts; the charge comes on top.
    """
    advisory_locks.hold(session, Lock.ACCOUNTS)
    active = _totals(model).where(TenantAccount.is_active).subquery()
    least = session.scalar(select(func.min(active.c.served))) or 0.0
    shards = select(func.sum(AccountShard.served)).where(
        AccountShard.tenant_id == tenant_id, AccountShard.model == model
    )
    lifted = session.scalar(
        select(TenantAccount.served).where(TenantAccount.tenant_id == tenant_id, TenantAccount.model == model)
    )
    price = num_tokens / session.scalars(select(Tenant.weight).where(Tenant.id == tenant_id)).one()
    before = (lifted or 0.0) + (session.scalar(shards) or 0.0) - price
    activate(session, tenant_id, model, lifted_by=max(0.0, least - before))


def _totals(model: str) -> Select[UUID, float]:
    """Select the accounts of a model with what counts of each."""
    shards = (
        select(func.coalesce(func.sum(AccountShard.served), 0.0))
        .where(AccountShard.tenant_id == TenantAccount.tenant_id, AccountShard.model == TenantAccount.model)
        .scalar_subquery()
    )
    total = (TenantAccount.served + shards).label("served")
    return select(TenantAccount.tenant_id, total).where(TenantAccount.model == model)
