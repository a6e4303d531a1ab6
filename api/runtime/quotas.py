"""Quotas of submissions: exact, from allowances, and as headers show them, from a sum of the last second."""

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final
from uuid import UUID

from sqlalchemy.orm import Session

from jobs.database import statements
from jobs.database.statements import Query
from jobs.tenants import allowances, key_quotas, quotas
from jobs.tenants.key_quotas import KeyQuota
from jobs.tenants.quotas import Admit, QuotaUsage, TenantLimits

_SHOWN_SECONDS: Final = 1.0  # what headers say is at most this old
_MAX_OWNERS: Final = 10_000


@dataclass(frozen=True, slots=True)
class _Known:
    """What a tenant, or a key with quotas, held when it was last summed, plus what we admitted since.

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

    def admission(self, tenant_id: UUID, limits: TenantLimits, *, of_key: KeyQuota | None = None) -> Admit:
        """Return the function that admits or refuses this tenant's submissions, by a key with quotas.

        Args:
            tenant_id: the tenant.
            limits: of the tenant.
            of_key: the quotas of the key that submits; None: it has none.
        """
        return partial(self._admit, tenant_id, limits, of_key)

    def _admit(  # the last three are what an `Admit` takes
        self,
        tenant_id: UUID,
        limits: TenantLimits,
        of_key: KeyQuota | None,
        session: Session,
        more: QuotaUsage,
        then: Sequence[Query],
    ) -> None:
        held = key_quotas.admit(session, of_key, more) if of_key is not None else None
        known = self._shown(tenant_id)
        if known is None:
            known = _Known(quotas.current_usage(session, tenant_id), time.monotonic() + _SHOWN_SECONDS)
        # What will probably be refused writes nothing that has to be undone.
        together = then if (known.held + more).is_within(limits) else ()
        allowances.take(session, tenant_id, self._shard, more, limits=limits, then=together)
        if not together:
            statements.fetch_all(session, then)
        self._keep(tenant_id, _Known(known.held + more, known.until))
        if of_key is not None and held is not None:
            self._keep(of_key.key_id, _Known(held, time.monotonic() + _SHOWN_SECONDS))

    def headers(
        self, tenant_id: UUID, limits: TenantLimits, *, of_key: KeyQuota | None = None
    ) -> dict[str, str]:
        """Return the remaining tokens as OpenAI's headers, the tenant's or, if it has fewer, the key's.

        Empty if not cached.
        """
        known = self._shown(tenant_id)
        if known is None:
            return {}
        left = [_left(known, limits)]
        if of_key is not None and (of_its_own := self._shown(of_key.key_id)) is not None:
            left.append(_left(of_its_own, of_key.limits))
        remaining, limit = min(left)
        return {"x-ratelimit-limit-tokens": str(limit), "x-ratelimit-remaining-tokens": str(remaining)}

    def _shown(self, owner_id: UUID) -> _Known | None:
        """Return what headers may say; None: nothing, or nothing any more."""
        known = self._known.get(owner_id)
        return known if known is not None and time.monotonic() < known.until else None

    def _keep(self, owner_id: UUID, known: _Known) -> None:
        if len(self._known) >= _MAX_OWNERS:
            self._known.clear()
        self._known[owner_id] = known


def _left(known: _Known, limits: TenantLimits) -> tuple[int, int]:
    """Return the remaining tokens, and of how many."""
    return max(0, limits.max_enqueued_tokens - known.held.tokens), limits.max_enqueued_tokens
