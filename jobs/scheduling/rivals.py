"""Engines that share a queue: whether others take from it now, and in which order each takes equal jobs."""

import time
import zlib
from collections.abc import Callable, Collection
from typing import Final

# After a miss: longer than candidates are kept, so that engines which are busy together stay apart.
_NEAR_SECONDS: Final = 2.0


class Rivals:
    """Remembers for a while that others take what one engine might. Threads of that engine share it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start without any rival. Args: clock: a monotonic clock, in seconds."""
        self._clock = clock
        self._missed_at = float("-inf")
        self._orders: frozenset[int] = frozenset()

    def note_missed(self) -> None:
        """Record that another engine started a job which this one chose, or might have chosen."""
        self._missed_at = self._clock()

    def know(self, engine_names: Collection[str]) -> None:
        """Remember which engines share the queue."""
        self._orders = frozenset(order_of(each) for each in engine_names)

    @property
    def orders(self) -> frozenset[int]:
        """The orders of the engines that share the queue."""
        return self._orders

    @property
    def are_near(self) -> bool:
        """True if that happened a moment ago, so that kept candidates may be taken."""
        return self._clock() - self._missed_at < _NEAR_SECONDS


def order_of(engine_name: str) -> int:
    """Return the number of the order in which this engine takes equal jobs while it has rivals. Never 0."""
    return zlib.crc32(engine_name.encode()) | 1
