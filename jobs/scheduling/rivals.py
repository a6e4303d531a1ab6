"""Engines that share a queue: whether others take from it now."""

import time
from collections.abc import Callable, Collection
from typing import Final

# After a miss: longer than candidates are kept.
_NEAR_SECONDS: Final = 2.0


class Rivals:
    """Remembers for a while that others take what one engine might. Threads of that engine share it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start without any rival. Args: clock: a monotonic clock, in seconds."""
        self._clock = clock
        self._missed_at = float("-inf")
        self._has_others = False

    def note_missed(self) -> None:
        """Record that another engine started a job which this one chose, or might have chosen."""
        self._missed_at = self._clock()

    def know(self, others: Collection[str]) -> None:
        """Remember whether other engines take jobs from the queue now."""
        self._has_others = bool(others)

    @property
    def are_near(self) -> bool:
        """True if others take from the queue, as was seen or missed a moment ago."""
        return self._has_others or self._clock() - self._missed_at < _NEAR_SECONDS
