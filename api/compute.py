"""Threads for parsing, counting and compressing: shared by all requests, one at a time for each tenant."""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, ParamSpec, TypeVar
from uuid import UUID

import anyio.to_thread
from anyio import CapacityLimiter

from jobs.errors import LimitError

P = ParamSpec("P")
T = TypeVar("T")

# What a thread does with fewer bytes takes a few milliseconds.
LONG_BYTES: Final = 256 * 1024
# One is computed while the other waits: more would only wait longer.
_MAX_ESTIMATES: Final = 2
_RETRY_SECONDS: Final = 5


class EstimateLimitError(LimitError):
    """You have as many estimates under way as you may; wait for one."""

    code = "estimate_limit_exceeded"
    limited = "estimates"


class Compute:
    """Gives tenants turns on the threads.

    A tenant waits in its own line first, so that the common line holds one request of each tenant: tenants
    take turns however much one of them sends. Long work leaves one thread to short work.
    """

    def __init__(self, num_threads: int | None = None) -> None:
        num = num_threads or max(2, os.cpu_count() or 1)
        self._threads = CapacityLimiter(num)
        self._long = CapacityLimiter(max(1, num - 1))
        self._lines: dict[UUID, asyncio.Lock] = {}
        self._num_waiting: Counter[UUID] = Counter()
        self._num_estimates: Counter[UUID] = Counter()

    async def run(
        self, tenant_id: UUID, num_bytes: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run `work` in a thread when it is the tenant's turn, and return what it returns.

        It works on about `num_bytes`, and cannot be stopped.
        """
        async with self._turn(tenant_id):
            if num_bytes <= LONG_BYTES:
                return await self._in_thread(lambda: work(*args, **kwargs))
            async with self._long:
                return await self._in_thread(lambda: work(*args, **kwargs))

    @asynccontextmanager
    async def estimate(self, tenant_id: UUID) -> AsyncIterator[None]:
        """Hold one of the tenant's places for estimates.

        Raises:
            EstimateLimitError: all are taken.
        """
        if self._num_estimates[tenant_id] >= _MAX_ESTIMATES:
            raise EstimateLimitError(
                f"You have {_MAX_ESTIMATES} estimates under way, as many as you may; wait for one.",
                limit=_MAX_ESTIMATES,
                remaining=0,
                retry_after_seconds=_RETRY_SECONDS,
            )
        self._num_estimates[tenant_id] += 1
        try:
            yield
        finally:
            _count_down(self._num_estimates, tenant_id)

    @asynccontextmanager
    async def _turn(self, tenant_id: UUID) -> AsyncIterator[None]:
        line = self._lines.setdefault(tenant_id, asyncio.Lock())
        self._num_waiting[tenant_id] += 1
        try:
            async with line:
                yield
        finally:
            if not _count_down(self._num_waiting, tenant_id):
                del self._lines[tenant_id]

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(work, limiter=self._threads)


def _count_down(numbers: Counter[UUID], tenant_id: UUID) -> int:
    """Take one away and return how many are left; nothing is kept of tenants without any."""
    numbers[tenant_id] -= 1
    left = numbers[tenant_id]
    if not left:
        del numbers[tenant_id]
    return left
