"""What a claim looks at: of every waiting tenant the first jobs of each size, however long the queue is."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple
from uuid import UUID

from sqlalchemy import Boolean, Float, Text, Uuid, bindparam, literal_column, select, text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Session

from jobs.admission import Capacity
from jobs.fair_share import Account
from jobs.models import NUM_SIZE_CLASSES, SIZE_CLASS, Job
from jobs.states import Lane

# Of the tenants that wait, so many are looked at: those that were served least.
MAX_TENANTS: Final = 16
# Jobs of one lane that are read at most, and of one tenant and size at least.
MAX_ROWS: Final = 96
_MIN_EACH: Final = 2
_MAX_URGENT: Final = 16
# A job ranks one priority higher in the last part of its window.
URGENT_PART: Final = 0.25


class Queued(NamedTuple):
    """A queued job as a claim sees it: no prompt, no texts."""

    id: UUID
    tenant_id: UUID
    lane: str
    rank: int
    task: str
    prompt_tokens: int
    completion_tokens: int
    max_tokens: int
    num_yields: int
    num_rescues: int
    created_at: datetime
    started_at: datetime | None
    expires_at: datetime | None
    text_id: UUID
    summary_id: UUID | None

    def priority(self, now: datetime) -> int:
        """Its rank, one higher when its window nears its end."""
        if self.expires_at is None:
            return self.rank
        left: timedelta = self.expires_at - now
        return self.rank + (left <= URGENT_PART * (self.expires_at - self.created_at))


_SIZE: Final = SIZE_CLASS.replace(":", r"\:")  # no parameter
_COLUMNS: Final = ", ".join(Queued._fields)
# The literal state lets the planner use the partial indexes.
_RUNNABLE: Final = """
    state = 'queued' AND model = :model AND lane = :lane AND (run_after IS NULL OR run_after <= :now)
    AND prompt_tokens + max_tokens <= :max_tokens AND prompt_tokens <= :max_input_len
"""
# Without statistics of a queue that was filled just now, the planner would read and sort all of it; what a
# claim reads stands in an index in the right order.
_WAITING: Final = text("""
    WITH RECURSIVE found(lane, tenant_id) AS (
        (SELECT lane, tenant_id FROM jobs WHERE state = 'queued' AND model = :model
         ORDER BY lane DESC, tenant_id DESC LIMIT 1)
        UNION ALL
        SELECT following.* FROM found, LATERAL (
            SELECT lane, tenant_id FROM jobs
            WHERE state = 'queued' AND model = :model AND (lane, tenant_id) < (found.lane, found.tenant_id)
            ORDER BY lane DESC, tenant_id DESC LIMIT 1
        ) AS following
    )
    SELECT found.lane, tenants.id AS tenant_id, tenants.weight, account.served, account.is_active,
        set_config('enable_sort', 'off', true)
    FROM found
    FULL JOIN (
        SELECT tenant_id, served, is_active FROM accounts
        WHERE model = :model AND (is_active OR tenant_id IN (SELECT tenant_id FROM found))
    ) AS account USING (tenant_id)
    JOIN tenants ON tenants.id = tenant_id
""").columns(lane=Text, tenant_id=Uuid, weight=Float, served=Float, is_active=Boolean, config=Text)
_FIRST: Final = (
    text(f"""
    SELECT first.* FROM unnest(:tenants) AS tenant(id), generate_series(0, :num_classes - 1) AS size(class),
        LATERAL (
            SELECT {_COLUMNS} FROM jobs
            WHERE {_RUNNABLE} AND tenant_id = tenant.id AND {_SIZE} = size.class
            ORDER BY rank DESC, id LIMIT :num_each
        ) AS first
    UNION
    (SELECT {_COLUMNS} FROM jobs WHERE {_RUNNABLE} AND expires_at IS NOT NULL AND tenant_id = ANY(:tenants)
     ORDER BY expires_at LIMIT :num_urgent)
""")  # noqa: S608  # made of constants
    .bindparams(bindparam("tenants", type_=ARRAY(Uuid)))
    .columns(*(Job.__table__.c[name] for name in Queued._fields))
)


def has_interactive(session: Session, model: str) -> bool:
    """Whether somebody waits for an answer."""
    waiting = select(Job.id).where(
        Job.state == literal_column("'queued'"),
        Job.model == model,
        Job.lane == literal_column(f"'{Lane.INTERACTIVE}'"),
    )
    return session.scalar(waiting.limit(1)) is not None


@dataclass(frozen=True, slots=True)
class Waiting:
    """Who has a queued job of a model, and whose accounts matter.

    Attributes:
        tenants: with a queued job, by lane.
        accounts: theirs, and those of tenants that had a job when an engine last looked.
        idle: those of `tenants` that had none.
    """

    tenants: dict[Lane, set[UUID]]
    accounts: dict[UUID, Account]
    idle: set[UUID]


def waiting_tenants(session: Session, model: str) -> Waiting:
    """Who waits for this model: one probe of the index for each tenant and lane."""
    found = Waiting(defaultdict(set), {}, set())
    for lane, tenant_id, weight, served, is_active, _ in session.execute(_WAITING, {"model": model}):
        found.accounts[tenant_id] = Account(weight=weight, served=served or 0.0)
        if not is_active:
            found.idle.add(tenant_id)
        if lane is not None:
            found.tenants[Lane(lane)].add(tenant_id)
    return found


def first_jobs(
    session: Session,
    model: str,
    lane: Lane,
    tenants: Collection[UUID],
    *,
    capacity: Capacity,
    now: datetime,
    max_rows: int = MAX_ROWS,
) -> Sequence[Queued]:
    """The best ranked runnable jobs of each size of these tenants, and those that expire next; unordered.

    Small, large and urgent ones are seen however many others stand before them, at the same cost.

    Args:
        session: nothing is locked.
        model: that the engine serves.
        lane: that is looked at.
        tenants: at most MAX_TENANTS.
        capacity: of the engine; what never fits it is left out.
        now: jobs that wait for a retry until later are left out.
        max_rows: shared by the tenants and sizes.
    """
    if not tenants:
        return []
    each = max(_MIN_EACH, max_rows // (len(tenants) * NUM_SIZE_CLASSES))
    rows = session.execute(
        _FIRST,
        {
            "model": model,
            "lane": lane.value,
            "tenants": sorted(tenants),
            "now": now,
            "max_tokens": min(capacity.max_seq_len, capacity.max_tokens_in_pool),
            "max_input_len": capacity.max_input_len,
            "num_classes": NUM_SIZE_CLASSES,
            "num_each": each,
            "num_urgent": _MAX_URGENT,
        },
    )
    return [Queued(*row) for row in rows]
