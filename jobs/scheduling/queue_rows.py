"""What a claim reads of a queue, however long it is: who waits, and the first jobs of each size."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from sqlalchemy.orm import Session

from jobs.database import statements
from jobs.database.statements import Statement
from jobs.engines.capacity import Capacity
from jobs.models import FIT_CLASS, NEED_BOUNDS, NEED_CLASSES, NUM_SIZE_CLASSES, SIZE_BOUNDS
from jobs.queries import QueuedJob
from jobs.scheduling.fair_share import Account
from jobs.scheduling.packing import Family
from jobs.states import Lane


@dataclass(frozen=True, slots=True)
class WaitingTenants:
    """The tenants with queued jobs of a model that may start, and the accounts that matter.

    Attributes:
        tenants: with a queued job, by lane. One whose queue is halted has none that may start.
        accounts: theirs, and those of tenants that had a job when an engine last claimed.
        idle: those of `tenants` that had none.
        postponed: by id, jobs that followers postponed on the engine, and for how many steps.
    """

    tenants: dict[Lane, set[UUID]]
    accounts: dict[UUID, Account]
    idle: set[UUID]
    postponed: dict[UUID, float]


def waiting_tenants(session: Session, model: str, engine_name: str | None = None) -> WaitingTenants:
    """Find the tenants that wait for this model: one index probe per tenant and lane.

    A tenant whose queue is halted counts as one without queued jobs: it earns no credit meanwhile.
    """
    rows = statements.fetch(session, _WAITING, {"model": model, "engine_name": engine_name})
    found = WaitingTenants(defaultdict(set), {}, set(), {})
    for lane, tenant_id, weight, served, is_active, is_halted, postponed_id, postponed_steps, _ in rows:
        if postponed_id is not None:
            found.postponed[postponed_id] = postponed_steps
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

# Most waiting tenants that one claim considers: those that were served least.
MAX_TENANTS: Final = 16
# Most jobs read of one lane, and fewest of one tenant and size. Tenants and sizes that have jobs share it.
MAX_ROWS: Final = 96
# At least so many rows for each free slot, so that one reading fills an engine with many of them.
ROWS_OF_SLOT: Final = 12
_MIN_EACH: Final = 2
_MAX_URGENT: Final = 16
# Jobs of one class that a claim passes to find those whose document is not being read; fewest of a tenant.
_MAX_PASSED: Final = 512
_MIN_PASSED: Final = 32
_NOBODY: Final = UUID(int=0)  # older than any reader
_NONE: Final[Mapping[Family, UUID | None]] = {}
# Documents whose followers a claim reads: a pool holds few long ones.
_MAX_FAMILIES: Final = 64

_COLUMNS: Final = ", ".join(QueuedJob._fields)
# The literal state lets the planner use the partial indexes.
_RUNNABLE: Final = """
    state = 'queued' AND model = %(model)s::text AND lane = %(lane)s::text
    AND (run_after IS NULL OR run_after <= %(now)s::timestamptz)
    AND (expires_at IS NULL OR expires_at > %(now)s::timestamptz)
    AND max_tokens <= %(max_tokens)s::integer - prompt_tokens AND prompt_tokens <= %(max_input_len)s::integer
"""
_FIRST_OF_CLASS: Final = f"""
            SELECT {_COLUMNS} FROM jobs
            WHERE {_RUNNABLE} AND tenant_id = possible.tenant_id AND {FIT_CLASS} = possible.class
            ORDER BY rank DESC, id LIMIT (SELECT num_each FROM share)
"""  # noqa: S608  # built from constants
# Finds the classes of a tenant's jobs one after the other, each by one index probe: there are few.
_FIRST_SQL: Final = f"""
    WITH RECURSIVE existing(tenant_id, class) AS (
        SELECT tenant.id, (
            SELECT {FIT_CLASS} FROM jobs
            WHERE state = 'queued' AND model = %(model)s::text AND lane = %(lane)s::text
                AND tenant_id = tenant.id
            ORDER BY {FIT_CLASS} LIMIT 1
        ) FROM unnest(%(tenants)s::uuid[]) AS tenant(id)
        UNION ALL
        SELECT tenant_id, (
            SELECT {FIT_CLASS} FROM jobs
            WHERE state = 'queued' AND model = %(model)s::text AND lane = %(lane)s::text
                AND tenant_id = existing.tenant_id AND {FIT_CLASS} > existing.class
            ORDER BY {FIT_CLASS} LIMIT 1
        ) FROM existing WHERE class IS NOT NULL
    ), possible AS (
        SELECT tenant_id, class FROM existing
        WHERE class / {NEED_CLASSES} <= %(max_size_class)s::integer
            AND class %% {NEED_CLASSES} <= %(max_need_class)s::integer
    ), share AS (
        SELECT greatest(%(num_each)s::integer, %(max_rows)s::integer / greatest(count(*), 1)) AS num_each
        FROM (SELECT DISTINCT tenant_id, class / {NEED_CLASSES} FROM possible) AS sizes
    )
    SELECT {_COLUMNS} FROM (
        SELECT first.*, row_number() OVER (
            PARTITION BY possible.tenant_id, possible.class / {NEED_CLASSES}
            ORDER BY first.rank DESC, first.id
        ) AS place
        FROM possible, LATERAL ({_FIRST_OF_CLASS}) AS first
    ) AS placed WHERE place <= (SELECT num_each FROM share)
    UNION
    (SELECT urgent.* FROM possible, LATERAL (
        SELECT {_COLUMNS} FROM jobs
        WHERE {_RUNNABLE} AND expires_at IS NOT NULL
            AND tenant_id = possible.tenant_id AND {FIT_CLASS} = possible.class
        ORDER BY expires_at LIMIT %(num_urgent_each)s::integer
    ) AS urgent ORDER BY urgent.expires_at LIMIT %(num_urgent)s::integer)
"""  # noqa: S608  # built from constants
FIRST: Final = Statement(_FIRST_SQL)
# The same without jobs of some families, found among the first ones only: thousands may ask about a document.
_FIRST_OTHERS: Final = Statement(
    _FIRST_SQL.replace(
        _FIRST_OF_CLASS,
        f"""
            SELECT * FROM (
                SELECT {_COLUMNS} FROM jobs
                WHERE {_RUNNABLE} AND tenant_id = possible.tenant_id AND {FIT_CLASS} = possible.class
                ORDER BY rank DESC, id LIMIT %(num_passed)s::integer
            ) AS passed WHERE family IS NULL
                OR coalesce(id < (%(readers)s::uuid[])[array_position(%(without)s::bytea[], family)], true)
            ORDER BY rank DESC, id LIMIT (SELECT num_each FROM share)
""",  # noqa: S608  # built from constants
    )
)
_FOLLOWERS: Final = Statement(f"""
    SELECT following.*
    FROM unnest(%(tenants)s::uuid[], %(families)s::bytea[]) AS here(tenant_id, family), LATERAL (
        SELECT {_COLUMNS} FROM jobs
        WHERE {_RUNNABLE} AND tenant_id = here.tenant_id AND family = here.family
        ORDER BY rank DESC, id LIMIT %(num_each)s::integer
    ) AS following
    """)  # noqa: S608  # built from constants


def first_jobs(
    session: Session,
    model: str,
    lane: Lane,
    tenants: Collection[UUID],
    *,
    capacity: Capacity,
    now: datetime,
    max_rows: int = MAX_ROWS,
    without: Mapping[Family, UUID | None] = _NONE,
) -> Sequence[QueuedJob]:
    """Read the best runnable jobs of each class and the next to expire; unordered.

    Finds small, large and urgent jobs however many others precede them, at the same cost; skips classes whose
    jobs never fit the engine.

    Args:
        session: locks nothing.
        model: that the engine serves.
        lane: to read.
        tenants: at most MAX_TENANTS.
        capacity: of the engine; jobs that never fit it are left out.
        now: leaves out jobs whose retry is due later.
        max_rows: shared by the tenants and sizes.
        without: families to leave out, except their jobs that expire next or are older than the given.
    """
    if not tenants:
        return []
    given = _limits(model, lane, capacity)
    statement, more = FIRST, dict[str, object]()
    if without:
        statement = _FIRST_OTHERS
        more = {
            "without": [each.digest for each in without],
            "readers": [each or _NOBODY for each in without.values()],
            "num_passed": max(_MIN_PASSED, _MAX_PASSED // len(tenants)),
        }
    given |= _numbers(capacity, max_rows, num_tenants=len(tenants)) | {"tenants": sorted(tenants), "now": now}
    return [QueuedJob(*row) for row in statements.fetch(session, statement, given | more)]


def max_rows(free_slots: int) -> int:
    """Return how many rows of one lane a claim for so many slots reads at most."""
    return max(MAX_ROWS, ROWS_OF_SLOT * free_slots)


def followers(
    session: Session,
    model: str,
    lane: Lane,
    families: Sequence[Family],
    *,
    capacity: Capacity,
    now: datetime,
) -> Sequence[QueuedJob]:
    """Read the first runnable jobs of these families, as many of each as the engine has slots; unordered."""
    if not families:
        return []
    first = families[:_MAX_FAMILIES]
    given = _limits(model, lane, capacity) | {
        "now": now,
        "tenants": [each.tenant_id for each in first],
        "families": [each.digest for each in first],
        "num_each": capacity.max_batch_size,
    }
    return [QueuedJob(*row) for row in statements.fetch(session, _FOLLOWERS, given)]


def _numbers(capacity: Capacity, max_rows: int, *, num_tenants: int) -> dict[str, Any]:
    """Return the parameters that decide which classes of jobs are read, and how many of each."""
    return {
        "max_size_class": bisect_right(SIZE_BOUNDS, capacity.max_input_len),
        "max_need_class": bisect_right(NEED_BOUNDS, min(capacity.max_seq_len, capacity.max_tokens_in_pool)),
        "max_rows": max_rows,
        "num_each": max(_MIN_EACH, max_rows // (num_tenants * NUM_SIZE_CLASSES)),
        "num_urgent": _MAX_URGENT,
        "num_urgent_each": max(_MIN_EACH, _MAX_URGENT // num_tenants),
    }


def _limits(model: str, lane: Lane, capacity: Capacity) -> dict[str, Any]:
    """Return the parameters that decide which jobs the engine can run now."""
    return {
        "model": model,
        "lane": lane.value,
        "max_tokens": min(capacity.max_seq_len, capacity.max_tokens_in_pool),
        "max_input_len": capacity.max_input_len,
    }
