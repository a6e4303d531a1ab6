"""Verifies API keys against the database, and caches the result for a few seconds."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from hashlib import sha256
from typing import Final
from uuid import UUID

from sqlalchemy.exc import DBAPIError

from api.runtime.database import Transactions
from api.runtime.key_lookups import KeyLookups
from api.runtime.rate_limits import RateLimit
from jobs.errors import AuthenticationError, LongbatchError
from jobs.models.tenant import ApiKey
from jobs.settings import Settings
from jobs.tenants import key_quotas, keys, quotas
from jobs.tenants.key_quotas import KeyQuota
from jobs.tenants.keys import Scope
from jobs.tenants.persons import Person
from jobs.tenants.quotas import TenantLimits

# Cached keys; beyond this number the oldest are looked up again. Wrong keys have their own cache, so that
# guessing does not evict valid ones.
_MAX_KNOWN: Final = 10_000
_MAX_UNKNOWN: Final = 1_000
# A key's use is noted so long after its look-up, and its entry is refreshed so long after a request: what the
# key is used for comes first.
_LATER_SECONDS: Final = 0.1
_REFRESH_FROM: Final = 0.8  # of the time for which a look-up holds
_BEARER: Final = "bearer "
# In OpenAI's words: LiteLLM raises its AuthenticationError for no others.
_WRONG: Final = "Incorrect API key provided"


@dataclass(frozen=True, slots=True)
class Caller:
    """A key that is valid now, and its tenant.

    Attributes:
        key_id: of its row.
        key: its public part, `lb_…`.
        key_name: the operator's name for it.
        tenant_id: the tenant.
        scopes: what it may do.
        limits: of the tenant.
        max_requests: its own rate limit; None: the tenant's alone holds.
        quota: what its own unfinished jobs may hold; None: the tenant's quota alone holds.
        is_person: it is no key, but a person who signed in by a provider: the same id for each session.
    """

    key_id: UUID
    key: str
    key_name: str
    tenant_id: UUID
    scopes: frozenset[Scope]
    limits: TenantLimits
    max_requests: int | None = None
    quota: KeyQuota | None = None
    is_person: bool = False

    @property
    def api_key_id(self) -> UUID | None:
        """The key that what it submits counts towards; None: a person has none."""
        return None if self.is_person else self.key_id

    @property
    def rate_limits(self) -> Sequence[RateLimit]:
        """What its requests count against: first its own limit, if that is below the tenant's.

        What the key's limit refuses thus takes nothing from the tenant's other keys.
        """
        of_tenant = RateLimit(self.tenant_id, self.limits.max_requests)
        if self.max_requests is None or self.max_requests >= of_tenant.max_requests:
            return [of_tenant]
        return [RateLimit(self.key_id, self.max_requests, _KEY_REFUSAL), of_tenant]


_KEY_REFUSAL: Final = "Rate limit of this API key reached: {:,} requests a minute (its max_requests)."


def caller_of(row: ApiKey, limits: TenantLimits) -> Caller:
    """Make the caller of a valid key."""
    # A later release's scopes, which a key may have during an upgrade, open nothing here.
    scopes = frozenset(scope for scope in Scope if scope.value in row.scopes)
    public = keys.public_id(row)
    quota = key_quotas.quota_of(row)
    return Caller(row.id, public, row.name, row.tenant_id, scopes, limits, row.max_requests, quota)


def caller_of_person(person: Person, tenant_id: UUID, limits: TenantLimits) -> Caller:
    """Make the caller of a person of this tenant."""
    scopes = frozenset(scope for scope in Scope if scope.value in person.scopes)
    return Caller(person.id, person.public_id, person.name, tenant_id, scopes, limits, is_person=True)


@dataclass(frozen=True, slots=True)
class _Found:
    """A cached look-up of a key.

    Attributes:
        row: None if there is no such key.
        caller: the key's; None likewise.
        until: when the cache entry expires, in monotonic seconds. Not later than the key: it is then looked
            up again, and the database's clock decides.
        refreshed_from: a request from then on refreshes the entry, and does not wait for that.
        has_expired: whether the key had expired by that clock.
    """

    row: ApiKey | None
    caller: Caller | None
    until: float
    refreshed_from: float
    has_expired: bool


class ApiKeys:
    """Verifies keys. A change to a key takes effect within `api.key_cache_seconds`."""

    def __init__(
        self, transactions: Transactions, settings: Settings, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._transactions = transactions
        self._seconds = settings.api.key_cache_seconds
        self._limits = settings.limits
        # By the hash of the key, so that a later dump of this process's memory contains no key.
        self._known: dict[bytes, _Found] = {}
        self._unknown: dict[bytes, _Found] = {}
        self._asking: dict[bytes, asyncio.Task[_Found]] = {}
        self._refreshing: set[bytes] = set()
        self._lookups = KeyLookups(transactions)
        self._noting: set[asyncio.Task[None]] = set()

    async def verify(self, authorization: str | None) -> Caller:
        """Verify the key in the Authorization header and return its caller.

        Raises:
            AuthenticationError: the header has no valid key; its message says why.
            UnavailableError: the database does not answer; try again.
        """
        if authorization is None:
            raise AuthenticationError
        secret = authorization[len(_BEARER) :].strip()
        if not authorization.lower().startswith(_BEARER) or keys.handle_of(secret) is None:
            raise AuthenticationError(f"{_WRONG}: send `Authorization: Bearer lb_…`.")
        found = await self._find(secret)
        row = found.row
        if row is None or found.caller is None:
            raise AuthenticationError(f"{_WRONG}: there is no such key.")
        if row.revoked_at is not None:
            raise AuthenticationError(f"{_WRONG}: it was revoked.")
        if found.has_expired:
            raise AuthenticationError(f"{_WRONG}: it has expired.")
        return found.caller

    async def _find(self, secret: str) -> _Found:
        """Return the cached key, or look it up once for all concurrent calls."""
        digest, now = sha256(secret.encode()).digest(), self._clock()
        found = self._known.get(digest) or self._unknown.get(digest)
        if found is None or now >= found.until:
            return await asyncio.shield(self._ask(secret, digest))
        if now >= found.refreshed_from and found.caller is not None and digest not in self._refreshing:
            self._refreshing.add(digest)
            asyncio.get_running_loop().call_later(_LATER_SECONDS, self._refresh, secret, digest)
        return found

    def _ask(self, secret: str, digest: bytes) -> asyncio.Task[_Found]:
        if digest not in self._asking:
            task = asyncio.create_task(self._look_up(secret, digest))
            task.add_done_callback(partial(self._asked, digest))
            self._asking[digest] = task
        return self._asking[digest]

    def _refresh(self, secret: str, digest: bytes) -> None:
        self._refreshing.discard(digest)
        found = self._known.get(digest)
        if found is not None and self._clock() >= found.refreshed_from:
            self._ask(secret, digest)

    def _asked(self, digest: bytes, task: asyncio.Task[_Found]) -> None:
        self._asking.pop(digest, None)
        if not task.cancelled():
            task.exception()  # all that asked may have left; then nobody retrieves it

    async def _look_up(self, secret: str, digest: bytes) -> _Found:
        asked_at = self._clock()
        seen = await self._lookups.find(secret)
        row = seen.row
        left = (row.expires_at - seen.now).total_seconds() if row and row.expires_at else None
        has_expired = left is not None and left <= 0
        # A look-up that waited read the database's clock later than ours: too early at most.
        seconds = self._seconds if left is None or has_expired else min(self._seconds, left)
        caller = None if row is None else caller_of(row, quotas.limits_of(self._limits, seen.own))
        found = _Found(row, caller, asked_at + seconds, asked_at + _REFRESH_FROM * seconds, has_expired)
        self._known.pop(digest, None)
        self._unknown.pop(digest, None)
        if row is None:
            _keep(self._unknown, digest, found, at_most=_MAX_UNKNOWN)
            return found
        _keep(self._known, digest, found, at_most=_MAX_KNOWN)
        if keys.is_usable(row, seen.now) and not keys.is_use_noted(row, seen.now):
            self._noting.add(task := asyncio.create_task(self._note_use(row, seen.now)))
            task.add_done_callback(self._noting.discard)
        return found

    async def _note_use(self, row: ApiKey, now: datetime) -> None:
        await asyncio.sleep(_LATER_SECONDS)
        with contextlib.suppress(LongbatchError, DBAPIError):  # only informative
            note = partial(keys.note_use, key_id=row.id, now=now)
            await self._transactions.run(note, tenant_ids=[row.tenant_id])


def _keep(where: dict[bytes, _Found], digest: bytes, found: _Found, *, at_most: int) -> None:
    """Add the newest entry, and evict the oldest when there are too many."""
    if len(where) >= at_most:
        del where[next(iter(where))]
    where[digest] = found
