"""How often a tenant may ask: counted in Redis for all API processes, here alone while it is away."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
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

# A request waits no longer than this for Redis, and after a failure none waits for so long.
_TIMEOUT_SECONDS: Final = 0.25
_AWAY_SECONDS: Final = 5.0
_CONNECTIONS: Final = 8
# What is left is asked for so often, and counted down in between.
_LOOK_SECONDS: Final = 1.0
_MAX_TENANTS: Final = 10_000
# Counted ahead at most, and as a part of what is left: near the limit each request is counted by itself.
_MAX_PERMITS: Final = 64
_PART: Final = 100
_PREFIX: Final = "longbatch"


@dataclass(frozen=True, slots=True)
class Rate:
    """Where a tenant stands after a request.

    Attributes:
        remaining: requests that it may send now.
        reset_at: seconds since the epoch; when more will be allowed.
    """

    limit: int
    remaining: int
    reset_at: float

    def headers(self) -> Mapping[str, str]:
        """As OpenAI names them."""
        return {
            "x-ratelimit-limit-requests": str(self.limit),
            "x-ratelimit-remaining-requests": str(self.remaining),
            "x-ratelimit-reset-requests": f"{max(0.0, self.reset_at - time.time()):.2f}s",
        }


class Rates:
    """Requests of each tenant in the last minute."""

    def __init__(self, settings: BrokerSettings) -> None:
        pool: Any = BlockingConnectionPool.from_url(  # the library's types know no pools
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

    async def hit(self, tenant_id: UUID, max_requests: int) -> Rate:
        """The request counts.

        Raises:
            RequestRateError: it is one too many, and does not count.
        """
        item = RateLimitItemPerMinute(max_requests)
        if time.monotonic() >= self._away_until:
            try:
                return await self._hit(self._shared, item, tenant_id)
            except (RedisError, OSError, TimeoutError) as error:
                self._away_until = time.monotonic() + _AWAY_SECONDS
                telemetry.logger().warning(telemetry.RATES_ALONE, error=type(error).__name__)
        return await self._hit(self._own, item, tenant_id)

    async def close(self) -> None:
        """The connections are closed."""
        await self._pool.aclose()

    async def _hit(
        self, limiter: SlidingWindowCounterRateLimiter, item: RateLimitItemPerMinute, tenant_id: UUID
    ) -> Rate:
        """The request counts; of many in a second most are counted ahead, so that few ask Redis."""
        held = self._held.get(tenant_id)
        if held is not None and held.rate.limit == item.amount and held.is_fresh():
            if held.num_permits:
                return held.spend()
        else:
            held = None
        key = tenant_id.hex
        num_permits = held.num_next if held else 1
        if num_permits > 1 and not await limiter.hit(item, key, cost=num_permits):
            num_permits = 1
        if num_permits == 1 and not await limiter.hit(item, key):
            raise await self._refusal(limiter, item, key)
        if held is None:
            stats = await limiter.get_window_stats(item, key)
            rate = Rate(item.amount, stats.remaining + 1, stats.reset_time)
            held = _Held(rate, until=time.monotonic() + _LOOK_SECONDS)
            self._hold(tenant_id, held)
        held.num_permits += num_permits
        held.num_next = min(2 * num_permits, _MAX_PERMITS, max(1, held.rate.remaining // _PART))
        return held.spend()

    async def _refusal(
        self, limiter: SlidingWindowCounterRateLimiter, item: RateLimitItemPerMinute, key: str
    ) -> RequestRateError:
        stats = await limiter.get_window_stats(item, key)
        return RequestRateError(
            f"Rate limit reached: {item.amount:,} requests a minute.",
            limit=item.amount,
            remaining=0,
            retry_after_seconds=max(1, math.ceil(stats.reset_time - time.time())),
        )

    def _hold(self, tenant_id: UUID, held: "_Held") -> None:
        if len(self._held) >= _MAX_TENANTS:
            self._held.clear()
        self._held[tenant_id] = held


@dataclass(slots=True)
class _Held:
    """What is known of a tenant for a second, and requests of it that were counted ahead.

    Attributes:
        num_permits: counted and not spent yet; those that are left after the second are lost.
        num_next: how many to count next: more each time within the second, few when little is left.
    """

    rate: Rate
    until: float
    num_permits: int = 0
    num_next: int = 1

    def is_fresh(self) -> bool:
        return time.monotonic() < self.until

    def spend(self) -> Rate:
        self.num_permits -= 1
        self.rate = Rate(self.rate.limit, max(0, self.rate.remaining - 1), self.rate.reset_at)
        return self.rate
