"""Look-ups that block, each in a thread of its own, few at once: the event loop's threads stay free."""

import asyncio
import threading
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Final, Generic, TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T")

_MAX_THREADS: Final = 4
_MAX_THREADS_OF_ONE: Final = 2


class Lookups(Generic[T]):
    """A few places for threads; one is free again when its thread has ended, however long that takes."""

    def __init__(self, work: Callable[[str], T]) -> None:
        self._work = work
        self._places = asyncio.Semaphore(_MAX_THREADS)
        # Whoever asks for names that nobody answers for leaves places to others.
        self._places_of: WeakValueDictionary[Hashable, asyncio.Semaphore] = WeakValueDictionary()

    async def start(self, name: str, *, owner: Hashable) -> "asyncio.Future[T]":
        """Start a look-up once a place is free.

        Args:
            name: what to look up.
            owner: who asks; of the places it gets half at most.

        Returns:
            What the thread will return or raise; the look-up goes on when nobody waits for it any more.
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
            except Exception as raised:  # noqa: BLE001  # handed on to whoever waits
                error = raised
            with suppress(RuntimeError):  # the service has ended meanwhile
                loop.call_soon_threadsafe(end, result, error)

        try:
            # A daemon, so that a resolver that hangs does not keep the process from ending.
            threading.Thread(target=look_up, name="lookup", daemon=True).start()
        except RuntimeError:  # the system has no thread for us
            end(None, OSError("no thread"))
        return found
