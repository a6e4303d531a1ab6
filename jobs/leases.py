"""What a worker does with its leases: renew them, report progress, and read stop requests.

No verb here waits for a locked row: one such job would hold up all the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from uuid import UUID

from sqlalchemy.orm import Session

from jobs import checkpoints, job_rows
from jobs.checkpoints import Output
from jobs.database import statements
from jobs.database.statements import Query, Statement
from jobs.states import Lane, StopReason
from jobs.transitions import Lease


def renew(session: Session, leases: Sequence[Lease], *, lease: timedelta) -> set[UUID]:
    """Extend the leases that still hold; an expired one is never revived.

    Returns:
        The ids of the extended leases. Of the others, some are lost, which `read_stops` shows; the rest are
        locked: try again soon.
    """
    if not leases:
        return set()
    return {lease_id for (lease_id,) in statements.fetch(session, _RENEW, _given(leases) | {"span": lease})}


@dataclass(frozen=True, slots=True)
class JobProgress:
    """How far a running job is.

    Attributes:
        lease: its fence.
        completion_tokens: tokens streamed so far.
        since_first_token: how long ago the first one came.
    """

    lease: Lease
    completion_tokens: int
    since_first_token: timedelta


def report_all(session: Session, reports: Sequence[JobProgress]) -> dict[UUID, bool]:
    """Report the progress of many jobs in one statement.

    Returns:
        The leases reported, by id, each with whether a queued job begins like this one; the others are lost,
        or their rows are locked.
    """
    if not reports:
        return {}
    values = {
        "num_tokens": [each.completion_tokens for each in reports],
        "since": [each.since_first_token for each in reports],
    }
    given = _given([each.lease for each in reports]) | values
    return dict(statements.fetch_all(session, [Query(_IN_ORDER, {}), Query(_REPORT, given)])[1])


def checkpoint_all(session: Session, leases: Sequence[Lease], outputs: Sequence[Output]) -> set[UUID]:
    """Save what many jobs have generated in one statement; one that cannot be stored fails it.

    Returns:
        The ids of the leases whose jobs are saved; the others are lost, or their rows are locked.
    """
    if not leases:
        return set()
    columns = [checkpoints.columns_of(each) for each in outputs]
    values = {name: [each[name] for each in columns] for name in _SAVED}
    saved = statements.fetch(session, _CHECKPOINT, _given(leases) | values)
    job_rows.expire_loaded(session, [job_id for job_id, _ in saved])
    return {lease_id for _, lease_id in saved}


def read_stops(session: Session, leases: Sequence[Lease]) -> dict[UUID, StopReason | None]:
    """Read why each held lease should end early, by lease id.

    Returns:
        The reasons; None: keep running. A lease that is absent is lost or has expired.
    """
    if not leases:
        return {}
    rows = statements.fetch(session, _READ_STOPS, _given(leases))
    return {lease_id: StopReason(reason) if reason else None for lease_id, reason in rows}


def _given(leases: Sequence[Lease]) -> dict[str, object]:
    return {"job_ids": [each.job_id for each in leases], "lease_ids": [each.lease_id for each in leases]}


# Sets of rows: a statement's text does not depend on their number. Only rows that no other transaction
# is changing are written; a foreign key to a job does not count as a change.
_MINE: Final = "jobs.id = ANY(%(job_ids)s::uuid[])"  # so that the planner can only look them up by their ids
_HELD: Final = f"jobs.id = given.id AND {_MINE} AND jobs.lease_id = given.lease_id AND jobs.state = 'running'"
_FREE: Final = "FOR NO KEY UPDATE OF jobs SKIP LOCKED"
_RENEW: Final = Statement(f"""
    WITH free AS (
        SELECT jobs.id FROM unnest(%(job_ids)s::uuid[], %(lease_ids)s::uuid[]) AS given(id, lease_id)
        JOIN jobs ON {_HELD} WHERE jobs.lease_expires_at > clock_timestamp() {_FREE}
    )
    UPDATE jobs SET lease_expires_at = clock_timestamp() + %(span)s::interval FROM free
    WHERE jobs.id = free.id AND {_MINE}
    RETURNING lease_id
    """)  # noqa: S608  # built from constants
# Without sorting, only the queue's index has the order of the followers, so the planner reads no other.
_IN_ORDER: Final = Statement("SELECT set_config('enable_sort', 'off', true)")
_REPORT: Final = Statement(f"""
    WITH free AS (
        SELECT jobs.id, given.num_tokens, given.since
        FROM unnest(
            %(job_ids)s::uuid[], %(lease_ids)s::uuid[], %(num_tokens)s::integer[], %(since)s::interval[]
        ) AS given(id, lease_id, num_tokens, since)
        JOIN jobs ON {_HELD} {_FREE}
    )
    UPDATE jobs SET completion_tokens = least(free.num_tokens, max_tokens),
        first_token_at = coalesce(first_token_at, clock_timestamp() - free.since)
    FROM free WHERE jobs.id = free.id AND {_MINE}
    RETURNING lease_id, family IS NOT NULL AND coalesce((
        SELECT true FROM unnest(ARRAY[{", ".join(f"'{each}'" for each in Lane)}]) AS existing(lane), LATERAL (
            SELECT FROM jobs AS follower
            WHERE follower.state = 'queued' AND follower.family IS NOT NULL AND follower.model = jobs.model
                AND follower.lane = existing.lane AND follower.tenant_id = jobs.tenant_id
                AND follower.family = jobs.family
                AND (existing.lane = '{Lane.BATCH.value}' OR follower.choice > 0)
            ORDER BY follower.rank DESC, follower.id LIMIT 1
        ) AS first LIMIT 1
    ), false)
    """)  # noqa: S608  # built from constants
_SAVED: Final = (
    "output",
    "output_ids",
    "num_tokens",
    "fingerprint",
    "replaced",
    "reasoning",
    "reasoning_tokens",
    "log_probs",
    "tool_calls",
)
_CHECKPOINT: Final = Statement(
    f"""
    WITH given AS (
        SELECT * FROM unnest(
            %(job_ids)s::uuid[], %(lease_ids)s::uuid[], %(output)s::text[], %(output_ids)s::bytea[],
            %(num_tokens)s::integer[], %(fingerprint)s::text[], %(replaced)s::boolean[],
            %(reasoning)s::text[], %(reasoning_tokens)s::integer[], %(log_probs)s::bytea[],
            %(tool_calls)s::text[]
        ) AS given(id, lease_id, {", ".join(_SAVED)})
    ), free AS (
        SELECT jobs.id, given.num_tokens FROM given JOIN jobs ON {_HELD} {_FREE}
    ), reported AS (
        UPDATE jobs SET completion_tokens = free.num_tokens FROM free
        WHERE jobs.id = free.id AND {_MINE}
        RETURNING jobs.id, jobs.lease_id
    ), saved AS (
        INSERT INTO checkpoints (job_id, {", ".join(_SAVED)})
        SELECT id, {", ".join(f"given.{name}" for name in _SAVED)} FROM reported JOIN given USING (id)
        ON CONFLICT (job_id) DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in _SAVED)}
    )
    SELECT id, lease_id FROM reported
    """,  # noqa: S608  # built from constants
    sealed=checkpoints.CONTENT,
)
_READ_STOPS: Final = Statement(f"""
    SELECT jobs.lease_id, jobs.stop_reason
    FROM unnest(%(job_ids)s::uuid[], %(lease_ids)s::uuid[]) AS given(id, lease_id)
    JOIN jobs ON {_HELD} WHERE jobs.lease_expires_at > clock_timestamp()
    """)  # noqa: S608  # built from constants
