"""Rate limits of tenants and keys: counted in Redis for all API processes, or in each while it is down."""

import math
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar
from uuid import UUID

from limits import RateLimitItemPerMinute
from limits.aio.storage import MemoryStorage, RedisStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter
from redis.asyncio import BlockingConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from jobs import telemetry
from jobs.errors import RequestRateError
from jobs.settings import BrokerSettings

# A request waits at most the first span for Redis; after a failure, requests skip Redis for the second.
_TIMEOUT_SECONDS: Final = 1.0
_AWAY_SECONDS: Final = 5.0
_CONNECTIONS: Final = 8
# How often the remainder is read from Redis; it is counted down in between.
_REFRESH_SECONDS: Final = 1.0
_MAX_OWNERS: Final = 10_000
# Permits counted ahead: at most 64, and 1/100 of the remainder, so near the limit each request counts alone.
_MAX_PERMITS: Final = 64
_REMAINDER_DIVISOR: Final = 100
_PREFIX: Final = "longbatch"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RateLimit:
    """What a key, or all of its tenant's keys, may send.

    Attributes:
        owner_id: of the key or the tenant.
        max_requests: in a minute.
        refusal: the error's message, with a place for `max_requests`.
    """

    owner_id: UUID
    max_requests: int
    refusal: str = "Rate limit reached: {:,} requests a minute."


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate limit after a request.

    Attributes:
        limit: requests per minute.
        remaining: requests that it may send now.
        reset_at: when more will be allowed, in seconds since the epoch.
    """

    limit: int
    remaining: int
    reset_at: float

    def headers(self) -> dict[str, str]:
        """Return the rate limit in OpenAI's headers."""
        return {
            "x-ratelimit-limit-requests": str(self.limit),
            "x-ratelimit-remaining-requests": str(self.remaining),
            "x-ratelimit-reset-requests": f"{max(0.0, self.reset_at - time.time()):.2f}s",
        }


class Rates:
    """Requests of each tenant, and of each key with a limit of its own, in the last minute."""

    def __init__(self, settings: BrokerSettings) -> None:
        pool: Any = BlockingConnectionPool.from_url(  # the library's types do not cover pools
            settings.url.get_secret_value(),
            max_connections=_CONNECTIONS,
            timeout=_TIMEOUT_SECONDS,
            socket_timeout=_TIMEOUT_SECONDS,
            socket_connect_timeout=_TIMEOUT_SECONDS,
            retry=Retry(NoBackoff(), 0),
        )
        self._pool: BlockingConnectionPool = pool
        shared = RedisStorage(
            "async+redis://", implementation="redispy", key_prefix=_PREFIX, connection_pool=pool
        )
        self._shared = SlidingWindowCounterRateLimiter(shared)
        self._own = SlidingWindowCounterRateLimiter(MemoryStorage())
        self._away_until = 0.0
        self._held: dict[UUID, _Held] = {}

    async def hit_each(self, limits: Iterable[RateLimit]) -> Rate:
        """Count a request against these rate limits, in order; return the one that leaves least.

        Raises:
            RequestRateError: the request exceeds one of them, and does not count against it and later ones.
        """
        return min([await self.hit(each) for each in limits], key=lambda rate: rate.remaining)

    async def hit(self, limit: RateLimit) -> Rate:
        """Count a request against the rate limit.

        Raises:
            RequestRateError: the request exceeds the limit, and does not count.
        """
        held = self._held.get(limit.owner_id)
        if held is not None and held.can_spend(limit.max_requests):
            return held.spend()
        return await self._on_either(partial(self._hit, limit=limit), limit.max_requests)

    async def check(self, limit: RateLimit) -> None:
        """Check that the limit has room for a request, without counting one.

        Raises:
            RequestRateError: it has none.
        """

        async def look(limiter: SlidingWindowCounterRateLimiter, item: RateLimitItemPerMinute) -> None:
            if not await limiter.test(item, limit.owner_id.hex):
                raise await self._refusal(limiter, item, limit)

        await self._on_either(look, limit.max_requests)

    async def charge(self, limit: RateLimit, *, num_requests: int) -> None:
        """Count work that was done already as so many requests, as far as the limit has room.

        Raises:
            RequestRateError: it had room for fewer; none is left.
        """
        charge = partial(self._charge, limit=limit, num_requests=num_requests)
        await self._on_either(charge, limit.max_requests)

    async def _on_either(
        self,
        count: Callable[[SlidingWindowCounterRateLimiter, RateLimitItemPerMinute], Awaitable[T]],
        /,
        limit: int,
    ) -> T:
        """Count in Redis or, while it is down, in this process."""
        item = RateLimitItemPerMinute(limit)
        if time.monotonic() >= self._away_until:
            try:
                return await count(self._shared, item)
            except (RedisError, OSError, TimeoutError) as error:
                self._away_until = time.monotonic() + _AWAY_SECONDS
                telemetry.logger().warning(telemetry.RATE_LIMITS_LOCAL, error=type(error).__name__)
        return await count(self._own, item)

    async def close(self) -> None:
        """Close the connections."""
        await self._pool.aclose()

    async def _hit(
        self, limiter: SlidingWindowCounterRateLimiter, item: RateLimitItemPerMinute, limit: RateLimit
    ) -> Rate:
        """Count a request; under load most are counted ahead, so that few need Redis."""
        held = self._held.get(limit.owner_id)
        held = held if held is not None and held.is_fresh(item.amount) else None
        key = limit.owner_id.hex
        num_permits = held.num_next if held else 1
        if num_permits > 1 and not await limiter.hit(item, key, cost=num_permits):
            num_permits = 1
        if num_permits == 1 and not await limiter.hit(item, key):
            raise await self._refusal(limiter, item, limit)
        if held is None:
            stats = await limiter.get_window_stats(item, key)
            rate = Rate(item.amount, stats.remaining + 1, stats.reset_time)
            held = _Held(rate, until=time.monotonic() + _REFRESH_SECONDS)
            self._hold(limit.owner_id, held)
        held.num_permits += num_permits
        held.num_next = min(2 * num_permits, _MAX_PERMITS, max(1, held.rate.remaining // _REMAINDER_DIVISOR))
        return held.spend()

    async def _charge(
        self,
        limiter: SlidingWindowCounterRateLimiter,
        item: RateLimitItemPerMinute,
        limit: RateLimit,
        *,
        num_requests: int,
    ) -> None:
        key = limit.owner_id.hex
        self._held.pop(limit.owner_id, None)  # it no longer knows the remainder
        if await limiter.hit(item, key, cost=num_requests):
            return
        stats = await limiter.get_window_stats(item, key)
        if stats.remaining:
            await limiter.hit(item, key, cost=stats.remaining)
        raise await self._refusal(limiter, item, limit)

    async def _refusal(
        self, limiter: SlidingWindowCounterRateLimiter, item: RateLimitItemPerMinute, limit: RateLimit
    ) -> RequestRateError:
        stats = await limiter.get_window_stats(item, limit.owner_id.hex)
        return RequestRateError(
            limit.refusal.format(item.amount),
            limit=item.amount,
            remaining=0,
            retry_after_seconds=max(1, math.ceil(stats.reset_time - time.time())),
        )

    def _hold(self, owner_id: UUID, held: "_Held") -> None:
        if len(self._held) >= _MAX_OWNERS:
            self._held.clear()
        self._held[owner_id] = held


@dataclass(slots=True)
class _Held:
    """A rate limit, cached for a second, and its requests counted ahead.

    Attributes:
        num_permits: counted and not spent yet; those left after the second are lost.
        num_next: how many to count next: more each time within the second, few when little remains.
    """

    rate: Rate
    until: float
    num_permits: int = 0
    num_next: int = 1

    def is_fresh(self, limit: int) -> bool:
        return self.rate.limit == limit and time.monotonic() < self.until

    def can_spend(self, limit: int) -> bool:
        return self.num_permits > 0 and self.is_fresh(limit)

    def spend(self) -> Rate:
        self.num_permits -= 1
        self.rate = Rate(self.rate.limit, max(0, self.rate.remaining - 1), self.rate.reset_at)
        return self.rate
