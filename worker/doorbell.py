"""The worker's side of the doorbell: rings from its own thread, so that a frozen broker delays no job."""

import queue
from collections.abc import Callable

import redis

from jobs import doorbell
from worker.loop import Loop


class WorkerDoorbell:
    """A thread that rings doorbells; pending rings of one doorbell are merged.

    Attributes:
        broker: the client that the rings go through.
    """

    def __init__(self, broker: redis.Redis, sender: doorbell.Sender) -> None:
        self.broker = broker
        self._sender = sender
        self._wanted: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.loop = Loop("doorbell-sender", self.run_once, interval=3600)

    def ring(self, name: str) -> None:
        """Wake the workers of this doorbell soon, if the broker works. Returns at once."""
        self._wanted.put(name)
        self.loop.wake()

    def acknowledge(self, name: str) -> None:
        """Mark this doorbell's ring as received, so that the next one is sent again."""
        doorbell.acknowledge(self.broker, name)

    def run_once(self) -> None:
        """Send every pending ring. One that cannot be sent is dropped."""
        wanted: set[str] = set()
        while not self._wanted.empty():
            wanted.add(self._wanted.get())
        for name in wanted:
            doorbell.ring(self.broker, self._sender, name)


Ring = Callable[[str], None]
