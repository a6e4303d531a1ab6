"""Engines that share a queue: whether others lately started what one of them chose."""

import time
import zlib
from collections.abc import Callable
from typing import Final

# After a miss: longer than candidates are kept, so that engines which are busy together stay apart.
_NEAR_SECONDS: Final = 2.0


class Rivals:
    """Remembers for a while that another engine was faster with a job. Threads of one engine share it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start without any rival. Args: clock: a monotonic clock, in seconds."""
        self._clock = clock
        self._missed_at = float("-inf")

    def note_missed(self) -> None:
        """Record that another engine started a job which this one chose."""
        self._missed_at = self._clock()

    @property
    def are_near(self) -> bool:
        """True if that happened a moment ago, so that kept candidates may be taken."""
        return self._clock() - self._missed_at < _NEAR_SECONDS


def order_of(engine_name: str) -> int:
    """Return the number of the order in which this engine takes equal jobs while it has rivals. Never 0."""
    return zlib.crc32(engine_name.encode()) | 1
