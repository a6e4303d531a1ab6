"""The doorbell as a worker rings it: from a thread of its own, so that a frozen broker delays no job."""

import queue
from collections.abc import Callable

import redis

from jobs import doorbell
from worker.loop import Loop


class Bell:
    """Rings bells; several rings of one that wait are one.

    Attributes:
        broker: its connections.
    """

    def __init__(self, broker: redis.Redis, publish: doorbell.Publish) -> None:
        self.broker = broker
        self._publish = publish
        self._wanted: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.loop = Loop("bell", self.run_once, interval=3600)

    def ring(self, name: str) -> None:
        """Whom this bell calls will look soon, if the broker works; returns at once."""
        self._wanted.put(name)
        self.loop.wake()

    def heard(self, name: str) -> None:
        """A ring of this bell was heard."""
        doorbell.heard(self.broker, name)

    def run_once(self) -> None:
        """Every wanted ring has sounded, or could not."""
        wanted: set[str] = set()
        while not self._wanted.empty():
            wanted.add(self._wanted.get())
        for name in wanted:
            doorbell.ring(self.broker, self._publish, name)


Ring = Callable[[str], None]
