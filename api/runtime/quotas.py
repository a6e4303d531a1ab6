"""Quotas of submissions: exact, from allowances, and as headers show them, from a sum of the last second."""

import secrets
import time
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from sqlalchemy.orm import Session

from jobs.tenants import allowances, quotas
from jobs.tenants.quotas import Admit, QuotaUsage, TenantLimits

_SHOWN_SECONDS: Final = 1.0  # what headers say is at most this old
_MAX_TENANTS: Final = 10_000


@dataclass(frozen=True, slots=True)
class _Known:
    """A tenant's usage when it was last summed, plus what this process admitted since.

    Attributes:
        until: when it is no longer shown, in monotonic seconds.
    """

    held: QuotaUsage
    until: float


class QuotaCache:
    """The quotas of this process's submissions."""

    def __init__(self) -> None:
        self._shard = secrets.randbelow(allowances.NUM_SHARDS)
        self._known: dict[UUID, _Known] = {}

    def admit_for(self, tenant_id: UUID, limits: TenantLimits) -> Admit:
        """Return the function that admits or refuses a submission of this tenant."""

        def admit(session: Session, more: QuotaUsage) -> None:
            known = self._known.get(tenant_id)
            if known is None or time.monotonic() >= known.until:
                known = _Known(quotas.current_usage(session, tenant_id), time.monotonic() + _SHOWN_SECONDS)
            allowances.take(session, tenant_id, self._shard, more, limits=limits)
            self._keep(tenant_id, _Known(known.held + more, known.until))

        return admit

    def headers(self, tenant_id: UUID, limits: TenantLimits) -> dict[str, str]:
        """Return the tenant's remaining tokens as OpenAI's headers; empty if not cached."""
        known = self._known.get(tenant_id)
        if known is None or time.monotonic() >= known.until:
            return {}
        left = max(0, limits.max_enqueued_tokens - known.held.tokens)
        return {
            "x-ratelimit-limit-tokens": str(limits.max_enqueued_tokens),
            "x-ratelimit-remaining-tokens": str(left),
        }

    def _keep(self, tenant_id: UUID, known: _Known) -> None:
        if len(self._known) >= _MAX_TENANTS:
            self._known.clear()
        self._known[tenant_id] = known
