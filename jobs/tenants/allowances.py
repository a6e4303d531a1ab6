"""Allowances: parts of a tenant's free quota that processes use up without summing its jobs.

What a tenant's jobs hold and what its allowances hold never exceed its limits together: an allowance is
written by a transaction that has the tenant's lock and has summed, and used up under its row's lock. So any
number of processes keep a quota exactly, and sum only when an allowance is used up.
"""

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from sqlalchemy.orm import Session

from jobs.database import statements
from jobs.database.statements import Query, Statement
from jobs.tenants import quotas
from jobs.tenants.quotas import QuotaUsage, TenantLimits

# Processes of one shard wait for each other's commits; of two shards they do not.
NUM_SHARDS: Final = 16
# An allowance is this part of what is free, so that other processes find some.
_PART: Final = 4


def take(
    session: Session,
    tenant_id: UUID,
    shard: int,
    more: QuotaUsage,
    *,
    limits: TenantLimits,
    then: Sequence[Query] = (),
) -> None:
    """Take this much more of the tenant's quota, from the shard's allowance if that suffices.

    What follows goes in the same message, and is undone and executed again if the allowance does not suffice.

    At most once in a transaction (a savepoint that is rolled back does not count), which holds the allowance
    until it ends: with a second one it could wait for a tenant's lock whose holder waits for the first.

    Raises:
        LimitError: it would be too much; nothing was taken. Do not commit what relied on it.
    """
    if not _use_up(session, tenant_id, shard, more, limits=limits, then=then):
        _, free = quotas.admit_and_free(session, tenant_id, more, limits=limits)
        _add(session, tenant_id, shard, free, limits=limits)
        statements.fetch_all(session, then)


def _use_up(
    session: Session,
    tenant_id: UUID,
    shard: int,
    more: QuotaUsage,
    *,
    limits: TenantLimits,
    then: Sequence[Query],
) -> bool:
    """Return False if the allowance does not suffice; nothing was taken then."""
    # An UPDATE that waited for the row keeps it locked even if it no longer matches. Whoever has the tenant's
    # lock may wait for the row, so it must be free before this transaction waits for that lock.
    given = {
        "tenant_id": tenant_id,
        "shard": shard,
        "tokens": more.tokens,
        "jobs": more.jobs,
        "stored_bytes": more.stored_bytes if limits.max_stored_bytes else 0,
        **_part_of(limits),  # part of another limit, it may be more than is free
    }
    _, used, *_ = statements.fetch_all(session, [Query(_BEFORE, {}), Query(_USE_UP, given), *then])
    if not used:
        statements.fetch(session, _UNDO, {})
    return bool(used)


def _part_of(limits: TenantLimits) -> dict[str, int]:
    """Return the limits that an allowance is part of, by the names of their columns."""
    return {name: getattr(limits, name) for name in ("max_enqueued_tokens", "max_jobs", "max_stored_bytes")}


_BEFORE: Final = Statement("SAVEPOINT before_allowance")
_UNDO: Final = Statement("ROLLBACK TO SAVEPOINT before_allowance")
# Results, which are always kept, may have taken the room for bytes since.
_USE_UP: Final = Statement("""
    UPDATE quota_allowances SET tokens = tokens - %(tokens)s::bigint, jobs = jobs - %(jobs)s::bigint,
        stored_bytes = stored_bytes - %(stored_bytes)s::bigint
    WHERE tenant_id = %(tenant_id)s::uuid AND shard = %(shard)s::smallint
        AND tokens >= %(tokens)s::bigint AND jobs >= %(jobs)s::bigint
        AND stored_bytes >= %(stored_bytes)s::bigint
        AND max_enqueued_tokens = %(max_enqueued_tokens)s::bigint AND max_jobs = %(max_jobs)s::bigint
        AND max_stored_bytes = %(max_stored_bytes)s::bigint
        AND (%(max_stored_bytes)s::bigint = 0 OR NOT EXISTS (
            SELECT FROM stored_totals
            WHERE stored_totals.tenant_id = %(tenant_id)s::uuid
                AND num_bytes + %(stored_bytes)s::bigint > %(max_stored_bytes)s::bigint))
    RETURNING tokens
""")


def _add(session: Session, tenant_id: UUID, shard: int, free: QuotaUsage, *, limits: TenantLimits) -> None:
    """Add a part of what is free to the shard's allowance."""
    part = {
        "tokens": max(0, free.tokens // _PART),
        "jobs": max(0, free.jobs // _PART),
        "stored_bytes": max(0, free.stored_bytes // _PART) if limits.max_stored_bytes else 0,
    }
    statements.fetch(session, _ADD, {"tenant_id": tenant_id, "shard": shard, **part, **_part_of(limits)})


# A tenant that does not exist gets nothing: thus this can be rehearsed.
_ADD: Final = Statement("""
    INSERT INTO quota_allowances AS mine
        (tenant_id, shard, tokens, jobs, stored_bytes, max_enqueued_tokens, max_jobs, max_stored_bytes)
    SELECT id, %(shard)s::smallint, %(tokens)s::bigint, %(jobs)s::bigint, %(stored_bytes)s::bigint,
        %(max_enqueued_tokens)s::bigint, %(max_jobs)s::bigint, %(max_stored_bytes)s::bigint
    FROM tenants WHERE id = %(tenant_id)s::uuid
    ON CONFLICT (tenant_id, shard) DO UPDATE SET tokens = mine.tokens + excluded.tokens,
        jobs = mine.jobs + excluded.jobs, stored_bytes = mine.stored_bytes + excluded.stored_bytes,
        max_enqueued_tokens = excluded.max_enqueued_tokens, max_jobs = excluded.max_jobs,
        max_stored_bytes = excluded.max_stored_bytes
""")
