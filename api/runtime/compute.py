"""Threads and a process for parsing, counting and compressing: all requests share them, tenants in turns."""

import asyncio
import os
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, ParamSpec, TypeVar, TypeVarTuple, Unpack
from uuid import UUID

import anyio.to_process
import anyio.to_thread
from anyio import BrokenWorkerProcess, CapacityLimiter

from jobs.errors import LimitError, UnavailableError

P = ParamSpec("P")
Ts = TypeVarTuple("Ts")
T = TypeVar("T")

# What a thread does with fewer bytes takes a few milliseconds.
LONG_BYTES: Final = 256 * 1024
# One is computed while the other waits: more would only wait longer.
_MAX_ESTIMATES: Final = 2
_RETRY_SECONDS: Final = 5
# It starts with the first long body, and takes about as much memory as the API itself.
_NUM_PROCESSES: Final = 1
# Below that of the process which answers everybody.
_NICENESS: Final = 5
# They wait rather than compute.
_STORAGE_THREADS: Final = 16


class EstimateLimitError(LimitError):
    """You have as many estimates under way as you may; wait for one."""

    code = "estimate_limit_exceeded"
    limited = "estimates"


class Compute:
    """Gives tenants turns on the threads: those with the fewest under way first, then the longest waiting.

    Short and long work wait in lines of their own, and long work leaves one thread to short work. Reads and
    writes of stored bytes, which wait for disks and networks, have other threads.
    """

    def __init__(self, num_threads: int | None = None) -> None:
        num = num_threads or max(2, os.cpu_count() or 1)
        self._threads = CapacityLimiter(num)
        self._processes = CapacityLimiter(_NUM_PROCESSES)
        self._storage = CapacityLimiter(_STORAGE_THREADS)
        self._short = _Line(num)
        self._long = _Line(max(1, num - 1))
        self._num_estimates: Counter[UUID] = Counter()

    async def run(
        self, tenant_id: UUID, num_bytes: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run `work` in a thread when it is the tenant's turn, and return what it returns.

        It works on about `num_bytes`, and cannot be stopped.
        """
        line = self._long if num_bytes > LONG_BYTES else self._short
        async with line.turn(tenant_id):
            return await anyio.to_thread.run_sync(lambda: work(*args, **kwargs), limiter=self._threads)

    async def run_apart(
        self,
        tenant_id: UUID,
        num_bytes: int,
        work: Callable[[Unpack[Ts]], T],
        *args: *Ts,
    ) -> T:
        """As `run`, but long work runs in another process: no other request waits for its interpreter.

        Args:
            tenant_id: whose turn it takes.
            num_bytes: that it works on, about.
            work: a module's function; it, what it takes, returns and raises are pickled.
            args: of `work`.

        Raises:
            UnavailableError: the process ended before `work` did.
        """
        if num_bytes <= LONG_BYTES:
            return await self.run(tenant_id, num_bytes, work, *args)
        async with self._long.turn(tenant_id):
            try:
                return await anyio.to_process.run_sync(_run_nicely, work, args, limiter=self._processes)
            except BrokenWorkerProcess as error:
                raise UnavailableError("The process that reads long requests ended; try again.") from error

    async def store(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work`, which waits for stored bytes, in a thread, and return what it returns."""
        return await anyio.to_thread.run_sync(lambda: work(*args, **kwargs), limiter=self._storage)

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


class _Line:
    """So many places, and tenants that wait for one."""

    def __init__(self, num_places: int) -> None:
        self._num_free = num_places
        self._running: Counter[UUID] = Counter()
        self._waiting: dict[UUID, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def turn(self, tenant_id: UUID) -> AsyncIterator[None]:
        """Hold a place."""
        place = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant_id, deque()).append(place)
        self._give()
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._take_back(tenant_id)
            raise
        try:
            yield
        finally:
            self._take_back(tenant_id)

    def _take_back(self, tenant_id: UUID) -> None:
        self._num_free += 1
        _count_down(self._running, tenant_id)
        self._give()

    def _give(self) -> None:
        """Give free places away."""
        while self._num_free and self._waiting:
            # Of equals the first in the line, at whose end a tenant is again once it is served.
            tenant_id = min(self._waiting, key=lambda each: self._running[each])
            line = self._waiting.pop(tenant_id)
            place = line.popleft()
            if line:
                self._waiting[tenant_id] = line
            if not place.done():  # its caller left
                self._num_free -= 1
                self._running[tenant_id] += 1
                place.set_result(None)


def _run_nicely(work: Callable[[Unpack[Ts]], T], args: tuple[*Ts]) -> T:
    """Run `work` in this process, which was made for that."""
    os.setpriority(os.PRIO_PROCESS, 0, _NICENESS)
    return work(*args)


def _count_down(numbers: Counter[UUID], tenant_id: UUID) -> None:
    """Take one away; nothing is kept of tenants without any."""
    numbers[tenant_id] -= 1
    if not numbers[tenant_id]:
        del numbers[tenant_id]
