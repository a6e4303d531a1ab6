"""Slots that became free are filled at once, several in one transaction when they come together."""

import threading
from collections.abc import Callable, Sequence
from typing import Final

from jobs.scheduling.claims import Ended

# A result is not written later than this because requests are on their way.
_MAX_DELAY_SECONDS: Final = 0.1


class Hurry:
    """Counts requests on their way to the engine: a free slot costs more than a result that comes later."""

    def __init__(self) -> None:
        self._num_urgent = 0
        self._changed = threading.Condition()

    def begin(self) -> None:
        """A slot is free and its next request not sent yet."""
        with self._changed:
            self._num_urgent += 1

    def done(self) -> None:
        """It was sent, or there is none."""
        with self._changed:
            self._num_urgent -= 1
            self._changed.notify_all()

    def give_way(self) -> None:
        """Returns when no request is on its way, or after a moment."""
        with self._changed:
            self._changed.wait_for(lambda: self._num_urgent <= 0, _MAX_DELAY_SECONDS)


class Refill:
    """Collects jobs whose requests have ended; whoever comes first fills the slots of all."""

    def __init__(self, fill: Callable[[Sequence[Ended]], bool], hurry: Hurry) -> None:
        """Args: fill: closes the bookings and starts other jobs; whether the engine is full then."""
        self._fill = fill
        self._hurry = hurry
        self._waiting: list[Ended] = []
        self._lock = threading.Lock()
        self._filling = threading.Lock()

    def after(self, ended: Ended) -> bool:
        """Whether the slot of this job is taken again, or was offered by somebody who sees to the rest."""
        self._hurry.begin()
        try:
            with self._lock:
                self._waiting.append(ended)
            with self._filling:
                with self._lock:
                    mine, self._waiting = self._waiting, []
                return not mine or self._fill(mine)
        finally:
            self._hurry.done()
