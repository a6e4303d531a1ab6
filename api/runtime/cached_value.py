"""A value that many ask for and one makes: good for a while, then made anew when somebody asks."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")
# Making takes at most this share of the time, however dear it is.
_DUTY: Final = 0.05


class Shared(Generic[T]):
    """The value; one task at a time makes it, on the event loop that asks."""

    def __init__(self, make: Callable[[], Awaitable[T]], *, seconds: float, old_seconds: float) -> None:
        """Nothing is made before somebody asks.

        Args:
            make: makes it.
            seconds: that it is good for, or longer if it is dear.
            old_seconds: after these it is still given, while a new one is made.
        """
        self._make = make
        self._seconds = seconds
        self._old_seconds = old_seconds
        self._value: T | None = None
        self._good_until = float("-inf")
        self._making: asyncio.Task[T] | None = None

    async def get(self) -> T:
        """The value.

        Raises:
            Exception: what making it raised; the next caller has it made again.
        """
        over = time.monotonic() - self._good_until
        if self._value is not None and over < 0:
            return self._value
        if self._making is None or self._making.done():
            self._making = asyncio.create_task(self._renew())
            self._making.add_done_callback(_look_at)
        if self._value is not None and over < self._old_seconds:
            return self._value
        return await asyncio.shield(self._making)

    async def close(self) -> None:
        """Nothing is being made any more."""
        if self._making is not None:
            self._making.cancel()
            with contextlib.suppress(Exception, asyncio.CancelledError):
                await self._making

    async def _renew(self) -> T:
        started = time.monotonic()
        self._value = value = await self._make()
        now = time.monotonic()
        self._good_until = now + max(self._seconds, (now - started) / _DUTY)
        return value


def _look_at(made: asyncio.Task[T]) -> None:
    """A failure that nobody waited for is no news for the event loop."""
    if not made.cancelled():
        made.exception()
