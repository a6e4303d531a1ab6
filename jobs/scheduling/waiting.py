"""The tenants that wait for a model, and their accounts."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from sqlalchemy.orm import Session

from jobs.database import statements
from jobs.database.statements import Query, Rows, Statement
from jobs.scheduling.fair_share import Account
from jobs.states import Lane

# Without statistics on a queue that has just filled, the planner would read and sort all of it; an index
# already has what a claim reads, in the right order.
_WAITING: Final = Statement("""
    WITH RECURSIVE found(lane, tenant_id) AS (
        (SELECT lane, tenant_id FROM jobs WHERE state = 'queued' AND model = %(model)s::text
         ORDER BY lane DESC, tenant_id DESC LIMIT 1)
        UNION ALL
        SELECT following.* FROM found, LATERAL (
            SELECT lane, tenant_id FROM jobs
            WHERE state = 'queued' AND model = %(model)s::text
                AND (lane, tenant_id) < (found.lane, found.tenant_id)
            ORDER BY lane DESC, tenant_id DESC LIMIT 1
        ) AS following
    )
    SELECT found.lane, tenants.id AS tenant_id, tenants.weight, account.served, account.is_active,
        tenants.halt IS NOT NULL AS is_halted, mine.overtaken_id, mine.overtaken_steps,
        set_config('enable_sort', 'off', true)
    FROM found
    FULL JOIN (
        SELECT tenant_id, is_active, served + (
            SELECT coalesce(sum(shard.served), 0) FROM account_shards AS shard
            WHERE shard.tenant_id = accounts.tenant_id AND shard.model = %(model)s::text
        ) AS served
        FROM accounts
        WHERE model = %(model)s::text AND (is_active OR tenant_id IN (SELECT tenant_id FROM found))
    ) AS account USING (tenant_id)
    JOIN tenants ON tenants.id = tenant_id
    LEFT JOIN account_shards AS mine ON mine.tenant_id = tenants.id
        AND mine.model = %(model)s::text AND mine.engine_name = %(engine_name)s::text
""")


@dataclass(frozen=True, slots=True)
class WaitingTenants:
    """The tenants with queued jobs of a model that may start, and the accounts that matter.

    Attributes:
        tenants: with a queued job, by lane. One whose queue is halted has none that may start.
        accounts: theirs, and those of tenants that had a job when an engine last claimed.
        idle: those of `tenants` that had none.
        overtaken: by id, jobs that followers overtook on the engine, and for how many steps.
    """

    tenants: dict[Lane, set[UUID]]
    accounts: dict[UUID, Account]
    idle: set[UUID]
    overtaken: dict[UUID, float]


def waiting_tenants(session: Session, model: str, engine_name: str | None = None) -> WaitingTenants:
    """Find the tenants that wait for this model: one index probe per tenant and lane.

    A tenant whose queue is halted counts as one without queued jobs: it earns no credit meanwhile.
    """
    return waiting_of(statements.fetch(session, *asking_waiting(model, engine_name)))


def asking_waiting(model: str, engine_name: str | None) -> Query:
    """Return the query of `waiting_tenants`; `waiting_of` takes its rows."""
    return Query(_WAITING, {"model": model, "engine_name": engine_name})


def waiting_of(rows: Rows) -> WaitingTenants:
    """Return what `waiting_tenants` does, from the rows of its query."""
    found = WaitingTenants(defaultdict(set), {}, set(), {})
    for lane, tenant_id, weight, served, is_active, is_halted, overtaken_id, overtaken_steps, _ in rows:
        if overtaken_id is not None:
            found.overtaken[overtaken_id] = overtaken_steps
        if is_halted and not is_active:
            continue
        found.accounts[tenant_id] = Account(weight=weight, served=served or 0.0)
        if is_halted:
            continue
        if not is_active:
            found.idle.add(tenant_id)
        if lane is not None:
            found.tenants[Lane(lane)].add(tenant_id)
    return found
