"""Quota checks fast enough for submissions: summed once a second while a tenant is far from its limits."""

import time
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from sqlalchemy.orm import Session

from jobs.tenants import quotas
from jobs.tenants.quotas import Admit, QuotaUsage, TenantLimits

_BELIEVED_SECONDS: Final = 1.0
# Up to this fraction of a limit, a sum from the last second is trusted; beyond it every submission sums, one
# after another. So one or two API processes keep the limit exactly; n of them admit at worst n/2 times the
# limit, from a tenant that fills it within one second.
_FAR: Final = 0.5
_MAX_TENANTS: Final = 10_000


@dataclass(frozen=True, slots=True)
class _Known:
    """A tenant's usage when it was last summed, plus what this process admitted since.

    Attributes:
        until: when it is no longer trusted, in monotonic seconds.
    """

    held: QuotaUsage
    until: float


class QuotaCache:
    """Cache of tenants' quota usage in this process."""

    def __init__(self) -> None:
        self._known: dict[UUID, _Known] = {}

    def admit_for(self, tenant_id: UUID, limits: TenantLimits) -> Admit:
        """Return the function that admits or refuses a submission of this tenant."""

        def admit(session: Session, more: QuotaUsage) -> None:
            known = self._known.get(tenant_id)
            if known is None or time.monotonic() >= known.until:
                known = _Known(quotas.current_usage(session, tenant_id), time.monotonic() + _BELIEVED_SECONDS)
            together = known.held + more
            if not _is_far(together, limits):
                together = quotas.admit(session, tenant_id, more, limits=limits)
            self._keep(tenant_id, _Known(together, known.until))

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


def _is_far(together: QuotaUsage, limits: TenantLimits) -> bool:
    return together.tokens <= limits.max_enqueued_tokens * _FAR and together.jobs <= limits.max_jobs * _FAR
