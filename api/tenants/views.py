"""Tenants and keys as operators see them."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from api.http.halts import halt_object
from jobs import ids, tenants
from jobs.models import ApiKey, Tenant
from jobs.models.tenant import TenantLimit
from jobs.scheduling import halts
from jobs.settings import LimitSettings
from jobs.tenants import key_quotas, keys, quotas
from jobs.tenants.quotas import LIMIT_NAMES, QuotaUsage
from jobs.views import optional_rfc3339, rfc3339


def tenant_objects(session: Session, rows: Sequence[Tenant], settings: LimitSettings) -> list[dict[str, Any]]:
    """Read the limits of these tenants and what runs of them, and convert all to what operators see."""
    tenant_ids = [row.id for row in rows]
    own = quotas.own_limits(session, tenant_ids)
    running = halts.count_running(session, tenant_ids)
    return [_tenant(row, own.get(row.id), settings, num_running=running.get(row.id, 0)) for row in rows]


def key_objects(session: Session, rows: Sequence[ApiKey], *, now: datetime) -> list[dict[str, Any]]:
    """Read whose these keys are and what they hold, and convert them to what operators see."""
    names = tenants.read_names(session, {row.tenant_id for row in rows})
    held = key_quotas.read_usages(session, [row.id for row in rows])
    return [
        {
            "id": keys.public_id(row),
            "object": "api_key",
            "tenant_id": ids.tenant_id(row.tenant_id),
            "tenant": names[row.tenant_id],
            "name": row.name,
            "scopes": row.scopes,
            "state": keys.state_of(row, now),
            "limits": keys.limits_of(row),
            "enqueued": _enqueued(held.get(row.id, QuotaUsage())),
            "created_at": rfc3339(row.created_at),
            "expires_at": optional_rfc3339(row.expires_at),
            "revoked_at": optional_rfc3339(row.revoked_at),
            "last_used_at": optional_rfc3339(row.last_used_at),
        }
        for row in rows
    ]


def _enqueued(held: QuotaUsage) -> dict[str, int]:
    return {"tokens": held.tokens, "jobs": held.jobs}


def _tenant(
    row: Tenant, own: TenantLimit | None, settings: LimitSettings, *, num_running: int
) -> dict[str, Any]:
    effective = quotas.limits_of(settings, own)
    return {
        "id": ids.tenant_id(row.id),
        "object": "tenant",
        "name": row.name,
        "weight": row.weight,
        "limits": {name: getattr(own, name, None) for name in LIMIT_NAMES},
        "effective_limits": {name: getattr(effective, name) for name in LIMIT_NAMES},
        "queue": halt_object(halts.halt_of(row), num_running=num_running),
        "zero_retention_seconds": row.zero_retention_seconds,
        "deletion": _deletion(row),
        "created_at": rfc3339(row.created_at),
    }


def _deletion(row: Tenant) -> dict[str, Any] | None:
    """Describe how far the tenant's deletion is."""
    if row.deleted_at is None:
        return None
    return {"ordered_at": rfc3339(row.deleted_at), "num_removed": row.num_removed}
