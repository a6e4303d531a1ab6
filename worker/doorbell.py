"""The worker's side of the doorbell: a thread rings and announces ends, so that no job waits for it."""

import threading
import time
from collections.abc import Callable, Collection
from uuid import UUID

import redis

from jobs import doorbell, live_output
from jobs.broker_line import BrokerLine
from worker.loop import Loop


class WorkerDoorbell:
    """A thread that rings doorbells and announces ends; pending rings of one doorbell are merged.

    Attributes:
        broker: the client that the announcements go through.
    """

    def __init__(self, broker: redis.Redis, sender: doorbell.Sender) -> None:
        self.broker = broker
        self._sender = sender
        self._wanted: set[str] = set()
        self._rung_at = float("-inf")
        self._ringing = threading.Lock()  # for the wanted rings
        self._ended: list[UUID] = []
        self._announced: list[UUID] = []  # last
        self._is_repeated = False
        self._line = BrokerLine(broker)
        self._announcing = threading.Lock()  # for the announcements and their connection
        self.loop = Loop("doorbell-sender", self.run_once, interval=3600)

    def ring(self, name: str) -> None:
        """Wake the workers of this doorbell soon, if the broker works. Returns at once."""
        with self._ringing:
            self._wanted.add(name)
        self.loop.wake()

    def announce(self, ended: Collection[UUID]) -> None:
        """Tell callers that wait for these jobs that they have ended. Returns at once."""
        with self._announcing:
            self._ended += ended
            del self._ended[: -live_output.MAX_ENDED]
            if self._line.connection is not None and not self._line.is_awaited:
                self._send_announcement()
        self.loop.wake()

    def run_once(self) -> None:
        """Announce ends, and send the pending rings once the pause after the last ones is over."""
        self._announce()
        if (early := self._rung_at + doorbell.PAUSE_SECONDS - time.monotonic()) > 0:
            if self._wanted:
                self.loop.wake_within(early)
            return
        self._ring()

    def finish(self) -> None:
        """Send at once whatever still waits; the thread has ended."""
        self._announce()
        self._ring()

    def _ring(self) -> None:
        """Send every pending ring. One that cannot be sent is dropped."""
        with self._ringing:
            names, self._wanted = self._wanted, set()
        for name in names:
            doorbell.ring(self._sender, name)
            self._rung_at = time.monotonic()

    def _announce(self) -> None:
        """Await the answer to the last announcement, and announce what has ended since."""
        try:
            if self._line.answers():
                self._is_repeated = False
        except (redis.RedisError, OSError) as error:
            with self._announcing:
                self._line.lose()
                # An idle connection that the broker has closed shows only now.
                self._is_repeated = not (self._is_repeated or isinstance(error, redis.TimeoutError))
                if self._is_repeated:
                    self._ended[:0] = self._announced
        self._line.connect()
        with self._announcing:
            if not self._line.is_awaited:
                self._send_announcement()
            if self._line.is_awaited:
                self.loop.wake()

    def _send_announcement(self) -> None:
        """Announce what has ended, or drop it if there is no connection; the caller holds the lock."""
        is_connected = self._line.connection is not None
        ended, self._ended = self._ended[-live_output.MAX_ENDED :], []
        command = ("EVAL", live_output.ANNOUNCE, 1, *live_output.announcement(ended))
        if ended and self._line.send([command]):
            self._announced = ended
        elif is_connected:
            self._ended = ended  # until it is connected again


RingBell = Callable[[str], None]
