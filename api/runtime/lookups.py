"""Runs blocking look-ups in a few threads of their own, so that the event loop's threads stay free."""

import asyncio
import threading
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Final, Generic, TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T")

_MAX_THREADS: Final = 4
_MAX_THREADS_OF_ONE: Final = 2


class LookupThreads(Generic[T]):
    """A few places for threads; a place is free again once its thread ends, however long that takes."""

    def __init__(self, work: Callable[[str], T]) -> None:
        self._work = work
        self._places = asyncio.Semaphore(_MAX_THREADS)
        # An owner whose names do not resolve leaves places to others.
        self._places_of: WeakValueDictionary[Hashable, asyncio.Semaphore] = WeakValueDictionary()

    async def start(self, name: str, *, owner: Hashable) -> "asyncio.Future[T]":
        """Start a look-up once a place is free.

        Args:
            name: what to look up.
            owner: on whose behalf; it gets at most half of the places.

        Returns:
            A future of what the thread returns or raises; the look-up goes on even if no caller waits.
        """
        mine = self._places_of.setdefault(owner, asyncio.Semaphore(_MAX_THREADS_OF_ONE))
        await mine.acquire()
        try:
            await self._places.acquire()
        except BaseException:
            mine.release()
            raise
        loop = asyncio.get_running_loop()
        found: asyncio.Future[T] = loop.create_future()

        def end(result: T | None, error: Exception | None) -> None:
            self._places.release()
            mine.release()
            if found.cancelled():
                return
            if error is None:
                found.set_result(result)  # type: ignore[arg-type]  # without an error there is one
            else:
                found.set_exception(error)

        def look_up() -> None:
            result, error = None, None
            try:
                result = self._work(name)
            except Exception as raised:  # noqa: BLE001  # passed on to the waiting caller
                error = raised
            with suppress(RuntimeError):  # the service ended meanwhile
                loop.call_soon_threadsafe(end, result, error)

        try:
            # A daemon, so that a resolver that hangs does not keep the process from ending.
            threading.Thread(target=look_up, name="lookup", daemon=True).start()
        except RuntimeError:  # the system has no thread for us
            end(None, OSError("no thread"))
        return found
