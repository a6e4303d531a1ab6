"""Engines that share a queue: whether others take from it now, and which part of it each takes first."""

import time
from collections.abc import Callable, Collection, Sequence
from typing import Final

from jobs.scheduling.packing import EVERY_JOB, Share

# After a miss: longer than candidates are kept, so that engines which are busy together stay apart.
_NEAR_SECONDS: Final = 2.0


class Rivals:
    """Remembers for a while that others take what one engine might. Threads of that engine share it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start without any rival. Args: clock: a monotonic clock, in seconds."""
        self._clock = clock
        self._missed_at = float("-inf")
        self._names: Sequence[str] = ()

    def note_missed(self) -> None:
        """Record that another engine started a job which this one chose, or might have chosen."""
        self._missed_at = self._clock()

    def know(self, engine_names: Collection[str]) -> None:
        """Remember which engines take jobs from the queue now."""
        self._names = sorted(engine_names)

    def share_of(self, engine_name: str) -> Share:
        """Return the share of this engine; all of the queue while it knows of no other one."""
        names = self._names
        return Share(len(names), names.index(engine_name)) if engine_name in names else EVERY_JOB

    @property
    def are_near(self) -> bool:
        """True if others take from the queue, as was seen or missed a moment ago."""
        return len(self._names) > 1 or self._clock() - self._missed_at < _NEAR_SECONDS
