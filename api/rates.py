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
        self._seen: dict[UUID, tuple[Rate, float]] = {}

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
        key = tenant_id.hex
        if not await limiter.hit(item, key):
            stats = await limiter.get_window_stats(item, key)
            raise RequestRateError(
                f"Rate limit reached: {item.amount:,} requests a minute.",
                limit=item.amount,
                remaining=0,
                retry_after_seconds=max(1, math.ceil(stats.reset_time - time.time())),
            )
        seen = self._seen.get(tenant_id)
        if seen is not None and time.monotonic() < seen[1] and seen[0].limit == item.amount:
            known, until = seen
            rate = Rate(known.limit, max(0, known.remaining - 1), known.reset_at)
        else:
            stats = await limiter.get_window_stats(item, key)
            rate = Rate(item.amount, stats.remaining, stats.reset_time)
            until = time.monotonic() + _LOOK_SECONDS
        if len(self._seen) >= _MAX_TENANTS:
            self._seen.clear()
        self._seen[tenant_id] = (rate, until)
        return rate
