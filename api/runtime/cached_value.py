"""A value that many callers share: valid for a while, then made again on the next request."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")
# Making the value takes at most this share of the time, however expensive it is.
_DUTY: Final = 0.05


class CachedValue(Generic[T]):
    """A cached value, made by one task at a time on the caller's event loop."""

    def __init__(
        self,
        make: Callable[[], Awaitable[T]],
        *,
        seconds: float,
        old_seconds: float,
        keeps: Callable[[T], bool] = lambda _: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare the cache; the first `get` makes the value.

        Args:
            make: makes the value.
            seconds: how long it is valid; longer if making it is expensive; 0: for nobody who asks later.
            old_seconds: how long after that it is still returned while a new one is made.
            keeps: returns False for a value that only the callers who wait for it get.
            clock: tells the seconds.
        """
        self._make = make
        self._keeps = keeps
        self._seconds = seconds
        self._old_seconds = old_seconds
        self._clock = clock
        self._value: T | None = None
        self._good_until = float("-inf")
        self._making: asyncio.Task[T] | None = None

    async def get(self) -> T:
        """Return the value, and make it if it is no longer valid.

        Raises:
            Exception: whatever making it raised; the next call makes it again.
        """
        over = self._clock() - self._good_until
        if self._value is not None and over < 0:
            return self._value
        if self._making is None or self._making.done():
            self._making = asyncio.create_task(self._renew())
            self._making.add_done_callback(_retrieve_error)
        if self._value is not None and over < self._old_seconds:
            return self._value
        return await asyncio.shield(self._making)

    async def close(self) -> None:
        """Cancel making the value and wait until that has stopped."""
        if self._making is not None:
            self._making.cancel()
            with contextlib.suppress(Exception, asyncio.CancelledError):
                await self._making

    async def _renew(self) -> T:
        started = self._clock()
        self._value = value = await self._make()
        now = self._clock()
        span = self._seconds and max(self._seconds, (now - started) / _DUTY)
        self._good_until = now + span if self._keeps(value) else float("-inf")
        return value


def _retrieve_error(made: asyncio.Task[T]) -> None:
    """Retrieve the task's error, which the event loop would log without a waiter."""
    if not made.cancelled():
        made.exception()
