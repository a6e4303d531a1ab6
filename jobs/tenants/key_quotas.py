"""What one key may have in the queue, within what its tenant may, and what it has there.

As a tenant's, that is the sum over the unfinished jobs that it submitted, and nothing counts up and down. A
key has no allowances: whoever takes of its quota sums under its lock. Only keys with quotas pay for that.
"""

import sys
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from jobs.database import statements
from jobs.database.advisory_locks import HOLD_ONE_OF, Lock
from jobs.database.statements import Query, Statement
from jobs.errors import LimitOf
from jobs.models import Job
from jobs.models.tenant import ApiKey
from jobs.tenants import keys, quotas
from jobs.tenants.quotas import QuotaUsage, TenantLimits

_ANY: Final = sys.maxsize


@dataclass(frozen=True, slots=True)
class KeyQuota:
    """A key that has quotas.

    Attributes:
        limits: what it may hold; what does not limit it is as large as can be.
    """

    key_id: UUID
    tenant_id: UUID
    limits: TenantLimits


def quota_of(row: ApiKey) -> KeyQuota | None:
    """Return the key's own quotas; None: it has none, so its tenant's alone hold."""
    if row.max_enqueued_tokens is None and row.max_jobs is None:
        return None
    tokens = _ANY if row.max_enqueued_tokens is None else row.max_enqueued_tokens
    limits = TenantLimits(tokens, _ANY if row.max_jobs is None else row.max_jobs, max_requests=_ANY)
    return KeyQuota(row.id, row.tenant_id, limits)


def read(session: Session, key_id: UUID | None) -> KeyQuota | None:
    """Read the quotas of the key that submitted something.

    Returns:
        None: it has none, or has none any more, since it expired or was revoked; or no key did.
    """
    if key_id is None:
        return None
    row = session.scalar(select(ApiKey).where(ApiKey.id == key_id, keys.usable()))
    return None if row is None else quota_of(row)


def current_usage(session: Session, quota: KeyQuota) -> QuotaUsage:
    """Sum what the key's unfinished jobs take at this moment."""
    ((tokens, num_jobs),) = statements.fetch(session, _SUM, _named(quota))
    return QuotaUsage(int(tokens), num_jobs)


def read_usages(session: Session, key_ids: Collection[UUID]) -> dict[UUID, QuotaUsage]:
    """Sum what the unfinished jobs of these keys take; keys that have none are left out."""
    sums = Job.api_key_id, func.sum(Job.reserved_tokens), func.count()
    tenant_ids = select(ApiKey.tenant_id).where(ApiKey.id.in_(key_ids)).distinct()
    mine = Job.tenant_id.in_(tenant_ids), Job.api_key_id.in_(key_ids), Job.finalized_at.is_(None)
    found = session.execute(select(*sums).where(*mine).group_by(Job.api_key_id))
    return {key_id: QuotaUsage(int(tokens), num) for key_id, tokens, num in found if key_id is not None}


def hold(session: Session, quota: KeyQuota) -> None:
    """Let no other transaction take of the key's quota until this one ends.

    Always before the tenant's lock and its allowances, so that of two transactions none waits for the other.
    """
    statements.fetch(session, HOLD_ONE_OF, _lock(quota))


def admit(session: Session, quota: KeyQuota, more: QuotaUsage) -> QuotaUsage:
    """Take this much more of the key's quota; return what it holds then. Exact, as it sums under the lock.

    Its tenant's is to be taken after it.

    Raises:
        LimitError: it would be too much; nothing was taken. Do not commit what relied on it.
    """
    # In one message. The sum sees what the last holder of the lock has committed, as it begins after that.
    queries = [Query(HOLD_ONE_OF, _lock(quota)), Query(_SUM, _named(quota))]
    _, ((tokens, num_jobs),) = statements.fetch_all(session, queries)
    more = QuotaUsage(more.tokens, more.jobs)
    together = QuotaUsage(int(tokens), num_jobs) + more
    quotas.check(together, more, limits=quota.limits, of=LimitOf.KEY)
    return together


def _named(quota: KeyQuota) -> dict[str, UUID]:
    return {"tenant_id": quota.tenant_id, "key_id": quota.key_id}


def _lock(quota: KeyQuota) -> dict[str, object]:
    return {"lock": Lock.KEY_QUOTA.value, "of": str(quota.key_id)}


_SUM: Final = Statement("""
    SELECT CAST(coalesce(sum(reserved_tokens), 0) AS bigint), count(*) FROM jobs
    WHERE tenant_id = %(tenant_id)s::uuid AND api_key_id = %(key_id)s::uuid AND finalized_at IS NULL
""")
