"""Refilling free slots at once, several in one transaction when they become free together."""

import threading
from collections.abc import Callable, Sequence
from typing import Final

from jobs.scheduling.claims import FreedSlot

# The longest that pending requests may delay the writing of a result.
_MAX_DELAY_SECONDS: Final = 0.1


class PendingSends:
    """A count of requests about to be sent: an idle slot costs more than a result that is written later."""

    def __init__(self) -> None:
        self._num_pending = 0
        self._changed = threading.Condition()

    def add(self) -> None:
        """Count a free slot whose next request is not sent yet."""
        with self._changed:
            self._num_pending += 1

    def remove(self) -> None:
        """Uncount a request that was sent, or that never will be."""
        with self._changed:
            self._num_pending -= 1
            self._changed.notify_all()

    def wait(self) -> None:
        """Wait until no request is pending, for at most a tenth of a second."""
        with self._changed:
            self._changed.wait_for(lambda: self._num_pending <= 0, _MAX_DELAY_SECONDS)


class SlotRefiller:
    """A collector of ended requests; the first thread to come refills the slots of all."""

    def __init__(self, fill: Callable[[Sequence[FreedSlot]], bool], pending_sends: PendingSends) -> None:
        """Args: fill: deletes the reservations and starts other jobs; True if the engine is then full."""
        self._fill = fill
        self._pending_sends = pending_sends
        self._waiting: list[FreedSlot] = []
        self._lock = threading.Lock()
        self._filling = threading.Lock()

    def refill(self, freed: FreedSlot) -> bool:
        """Refill the slot of an ended request. Returns True if it was, or if another thread takes it on."""
        self._pending_sends.add()
        try:
            with self._lock:
                self._waiting.append(freed)
            with self._filling:
                with self._lock:
                    mine, self._waiting = self._waiting, []
                return not mine or self._fill(mine)
        finally:
            self._pending_sends.remove()
