"""Threads and a process for parsing, counting and compressing, shared fairly between tenants."""

import asyncio
import os
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, ParamSpec, TypeVar, TypeVarTuple, Unpack
from uuid import UUID

import anyio.to_thread
from anyio import CapacityLimiter

from api.runtime.body_process import BodyProcess
from jobs.errors import InvalidRequestError, LimitError

P = ParamSpec("P")
Ts = TypeVarTuple("Ts")
T = TypeVar("T")

# Work on fewer bytes takes a thread a few milliseconds.
LONG_BYTES: Final = 256 * 1024
# One runs while the other waits; more would only wait longer.
_MAX_ESTIMATES: Final = 2
# On two cores, so that one tenant may use both and another still finds a thread.
_MIN_THREADS: Final = 4
_RETRY_SECONDS: Final = 5
# One connection that sends nothing but bad requests keeps a place busy a twentieth of the time.
_REFUSAL_DELAY_PER_WORK: Final = 20
_MAX_REFUSAL_DELAY_SECONDS: Final = 2.0
# These threads wait for I/O rather than compute.
_STORAGE_THREADS: Final = 16


class EstimateLimitError(LimitError):
    """You have reached your limit of concurrent estimates; wait for one to finish."""

    code = "estimate_limit_exceeded"
    limited = "estimates"


class Compute:
    """Threads that serve the tenant with the least running work first, then the one waiting longest.

    Short and long work queue separately and have threads of their own. The short work of one tenant leaves a
    thread to the others, since it may wait for a confined process. The process for long bodies has its own
    queue: a tenant's bodies wait behind each other and let those of other tenants pass. Reads and writes of
    stored bytes, which wait for disks and networks, have threads of their own.

    An `InvalidRequestError` is raised late, in proportion to the time that the work took, so that costly junk
    does not keep the loop and the places busy. The delay holds no place.
    """

    def __init__(self, num_threads: int | None = None, *, process: BodyProcess | None = None) -> None:
        """Make the queues.

        Args:
            num_threads: for short work; None: as many as cores, at least four.
            process: for long bodies; None: the first of them starts one.
        """
        num = num_threads or max(_MIN_THREADS, os.cpu_count() or 1)
        self._threads = CapacityLimiter(num + max(1, num - 1))
        self._process = process or BodyProcess()
        self._storage = CapacityLimiter(_STORAGE_THREADS)
        self._short = _FairQueue(num, most_of_one=max(1, num - 1))
        self._long = _FairQueue(max(1, num - 1), most_of_one=num)
        self._apart = _FairQueue(1, most_of_one=1)
        self._num_estimates: Counter[UUID] = Counter()

    async def run(
        self, tenant_id: UUID, num_bytes: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run `work` in a thread when it is the tenant's turn, and return its result.

        It works on about `num_bytes`, and cannot be interrupted.
        """
        line = self._long if num_bytes > LONG_BYTES else self._short
        async with line.turn(tenant_id):
            return await anyio.to_thread.run_sync(lambda: work(*args, **kwargs), limiter=self._threads)

    async def run_apart(
        self, tenant_id: UUID, num_bytes: int, work: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> T:
        """Run `work` as `run` does, but in another process if it is long.

        Long work thus does not hold the interpreter lock that other requests need.

        Args:
            tenant_id: the tenant whose turn it takes.
            num_bytes: approximate size of the input.
            work: a module-level function; it, its arguments, result and errors are pickled.
            args: of `work`.

        Raises:
            UnavailableError: the process died before `work` returned; try again.
        """
        if num_bytes <= LONG_BYTES:
            return await self.run(tenant_id, num_bytes, work, *args)
        async with self._apart.turn(tenant_id):
            return await self._process.run(work, *args)

    def close(self) -> None:
        """End the process for long bodies."""
        self._process.close()

    async def store(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work`, which waits for stored bytes, in a thread, and return its result."""
        return await anyio.to_thread.run_sync(lambda: work(*args, **kwargs), limiter=self._storage)

    @asynccontextmanager
    async def estimate(self, tenant_id: UUID) -> AsyncIterator[None]:
        """Hold one of the tenant's places for estimates.

        Raises:
            EstimateLimitError: all of them are taken; the caller should wait for an estimate to finish.
        """
        if self._num_estimates[tenant_id] >= _MAX_ESTIMATES:
            raise EstimateLimitError(
                f"You may run {_MAX_ESTIMATES} estimates at once; wait for one to finish.",
                limit=_MAX_ESTIMATES,
                remaining=0,
                retry_after_seconds=_RETRY_SECONDS,
            )
        self._num_estimates[tenant_id] += 1
        try:
            yield
        finally:
            count_down(self._num_estimates, tenant_id)


class _FairQueue:
    """A number of places, of which one tenant may hold so many, and the tenants that wait for one."""

    def __init__(self, num_places: int, *, most_of_one: int) -> None:
        self._num_free = num_places
        self._most_of_one = most_of_one
        self._running: Counter[UUID] = Counter()
        self._waiting: dict[UUID, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def turn(self, tenant_id: UUID) -> AsyncIterator[None]:
        """Wait for a place and hold it.

        An `InvalidRequestError` gives the place back at once and is raised after a delay.
        """
        place = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant_id, deque()).append(place)
        self._give()
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._take_back(tenant_id)
            raise
        started = time.monotonic()
        try:
            yield
        except InvalidRequestError as error:
            refusal, seconds = error, time.monotonic() - started
        else:
            return
        finally:
            self._take_back(tenant_id)
        delay = _REFUSAL_DELAY_PER_WORK * seconds
        await asyncio.sleep(min(delay, _MAX_REFUSAL_DELAY_SECONDS))
        raise refusal

    def _take_back(self, tenant_id: UUID) -> None:
        self._num_free += 1
        count_down(self._running, tenant_id)
        self._give()

    def _give(self) -> None:
        """Give free places to waiting tenants."""
        while self._num_free and self._waiting:
            # Among equals the first in line; a tenant rejoins at the end once it is served.
            tenant_id = min(self._waiting, key=lambda each: self._running[each])
            if self._running[tenant_id] >= self._most_of_one:
                return
            line = self._waiting.pop(tenant_id)
            place = line.popleft()
            if line:
                self._waiting[tenant_id] = line
            if not place.done():  # it is done if its caller left
                self._num_free -= 1
                self._running[tenant_id] += 1
                place.set_result(None)


def count_down(numbers: Counter[UUID], tenant_id: UUID) -> None:
    """Subtract one, and drop the tenant when none are left."""
    numbers[tenant_id] -= 1
    if not numbers[tenant_id]:
        del numbers[tenant_id]
