"""Rest: a service worker that nothing rings looks more rarely for work.

Twenty looks a second that find nothing cost a twentieth of a core, and Postgres as much again. While Redis is
up, whatever makes work rings, and looking only finds what was not told.
"""

import time
from collections.abc import Callable
from typing import Final

# After work or a ring: more of either follows soon.
_BUSY_SECONDS: Final = 10.0
_TIMES: Final = 4
_LONGEST_SECONDS: Final = 2.0


def longest_pause(interval: float) -> float:
    """Return the seconds between two rounds while nothing happens, given those otherwise."""
    return max(interval, min(_TIMES * interval, _LONGEST_SECONDS))


class Rest:
    """Tells whether a worker has nothing to do. Any thread may use it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin as if there had just been work."""
        self._clock = clock
        self._active_at = clock()

    def end(self) -> None:
        """Note that there is work, or that there may be."""
        self._active_at = self._clock()

    @property
    def has_begun(self) -> bool:
        """Whether there was no work for a while."""
        return self._clock() - self._active_at >= _BUSY_SECONDS
