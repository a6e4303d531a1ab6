"""The inbox of a run: any thread puts events in, one coroutine takes them out."""

import asyncio
from collections import deque
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T")


class Inbox(Generic[T]):
    """A queue of events that wakes its one reader, on whatever event loop that waits."""

    def __init__(self) -> None:
        self._events: deque[T] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def put(self, event: T) -> None:
        """Append an event and wake the reader. Never blocks."""
        self._events.append(event)
        waiter, self._waiter = self._waiter, None  # later events need not wake it again
        if waiter is None:
            return
        loop = waiter.get_loop()
        if asyncio._get_running_loop() is loop:  # noqa: SLF001  # the public one raises where none runs
            _wake(waiter)
            return
        with suppress(RuntimeError):  # the reader's loop is closed
            loop.call_soon_threadsafe(_wake, waiter)

    def empty(self) -> bool:
        """Return True if no event waits."""
        return not self._events

    def qsize(self) -> int:
        """Return the number of waiting events."""
        return len(self._events)

    def get_nowait(self) -> T | None:
        """Take the next event. Returns None if there is none."""
        return self._events.popleft() if self._events else None

    async def get(self, *, timeout: float) -> T | None:  # noqa: ASYNC109  # a timer is cheaper than a task
        """Wait for the next event. Returns None if none comes within `timeout` seconds."""
        if not self._events:
            loop = asyncio.get_running_loop()
            self._waiter = waiter = loop.create_future()
            try:
                if not self._events:  # one may have come before there was a waiter
                    timer = loop.call_later(timeout, _wake, waiter)
                    try:
                        await waiter
                    finally:
                        timer.cancel()
            finally:
                self._waiter = None
        return self.get_nowait()


def _wake(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
