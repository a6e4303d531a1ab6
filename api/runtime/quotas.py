"""Quotas of submissions: exact, from allowances, and as headers show them, from a sum of the last second."""

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from sqlalchemy.orm import Session

from jobs.database import direct
from jobs.database.direct import Query, Rows
from jobs.tenants import allowances, key_quotas, quotas
from jobs.tenants.key_quotas import KeyQuota
from jobs.tenants.quotas import QuotaUsage, TenantLimits

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
        # What the last submission of each tenant left of its allowance; other processes may use it up.
        self._allowances: dict[UUID, QuotaUsage] = {}

    def admission(
        self, tenant_id: UUID, limits: TenantLimits, *, of_key: KeyQuota | None = None
    ) -> "Admission":
        """Return what admits or refuses a submission of this tenant, by a key with quotas."""
        return Admission(self, tenant_id, limits, of_key)

    def admit(self, session: Session, by: "Admission", more: QuotaUsage, then: Sequence[Query]) -> None:
        """Take this much more of the quota, or raise LimitError, and execute what follows."""
        self._allowances.pop(by.tenant_id, None)  # what is left is not known if this fails
        held = key_quotas.admit(session, by.of_key, more) if by.of_key is not None else None
        known = self._shown(by.tenant_id)
        if known is None:
            known = _Known(quotas.current_usage(session, by.tenant_id), time.monotonic() + _SHOWN_SECONDS)
        # What will probably be refused writes nothing that has to be undone.
        together = then if (known.held + more).is_within(by.limits) else ()
        left = allowances.take(session, by.tenant_id, self._shard, more, limits=by.limits, then=together)
        if not together:
            direct.fetch_all(session, then)
        self._keep(by.tenant_id, _Known(known.held + more, known.until))
        if left is not None:
            self._allowances[by.tenant_id] = left
        if by.of_key is not None and held is not None:
            self._keep(by.of_key.key_id, _Known(held, time.monotonic() + _SHOWN_SECONDS))

    def taking(self, by: "Admission", more: QuotaUsage) -> Sequence[Query]:
        """As `Foresight.taking`, of the allowance."""
        left = self._allowances.get(by.tenant_id)
        if by.of_key is not None or left is None or not allowances.suffices(left, more, limits=by.limits):
            return ()
        taking = allowances.taking(by.tenant_id, self._shard, more, limits=by.limits)
        is_shown = self._shown(by.tenant_id) is not None
        return [taking] if is_shown else [taking, quotas.asking_held(by.tenant_id)]

    def took(self, by: "Admission", more: QuotaUsage, found: Sequence[Rows]) -> None:
        """As `Foresight.took`."""
        ((*left, _),), *asked = found
        self._allowances[by.tenant_id] = QuotaUsage(*left)
        known = self._shown(by.tenant_id)
        if asked:
            known = _Known(quotas.held_of(asked[0][0]), time.monotonic() + _SHOWN_SECONDS)
        if known is not None:
            self._keep(by.tenant_id, _Known(known.held + more, known.until))

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
            self._allowances.clear()
        self._known[owner_id] = known


@dataclass(frozen=True, slots=True)
class Admission:
    """Admits or refuses submissions of a tenant, as an `Admit` and as a `Foresight`.

    Attributes:
        of_key: the quotas of the key that submits; None: it has none.
    """

    cache: QuotaCache
    tenant_id: UUID
    limits: TenantLimits
    of_key: KeyQuota | None = None

    def __call__(self, session: Session, more: QuotaUsage, then: Sequence[Query]) -> None:
        """Take this much more of the quota in this transaction, and execute what follows.

        Raises:
            LimitError: it would be too much.
        """
        self.cache.admit(session, self, more, then)

    def taking(self, more: QuotaUsage) -> Sequence[Query]:
        """See `Foresight`."""
        return self.cache.taking(self, more)

    def took(self, more: QuotaUsage, found: Sequence[Rows]) -> None:
        """See `Foresight`."""
        self.cache.took(self, more, found)


def _left(known: _Known, limits: TenantLimits) -> tuple[int, int]:
    """Return the remaining tokens, and of how many."""
    return max(0, limits.max_enqueued_tokens - known.held.tokens), limits.max_enqueued_tokens
