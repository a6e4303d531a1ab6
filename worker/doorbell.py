"""The worker's side of the doorbell: rings and hears in threads of its own, so that no job waits for it."""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from typing import Final
from uuid import UUID

import redis

from jobs import doorbell, live_output
from jobs.broker_line import BrokerLine
from jobs.doorbell import Ring
from jobs.ids import uuid7
from jobs.settings import BrokerSettings
from worker.loop import Loop
from worker.threads import WorkerThreads

# Between two signs that this worker listens; below the time for which one holds.
_HEAR_SECONDS: Final = 2.0
_PASS_ON_EVERY_SECONDS: Final = 0.1
_MAX_SEEN: Final = 1024
# After a ring the thread that answers it gets the interpreter; the next one waits in Redis meanwhile.
_AFTER_RING_SECONDS: Final = 0.001


class WorkerDoorbell:
    """A thread that rings doorbells; pending rings of one doorbell are merged.

    Attributes:
        broker: the client that the rings go through.
    """

    def __init__(self, broker: redis.Redis, sender: doorbell.Sender) -> None:
        self.broker = broker
        self._sender = sender
        self._wanted: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._ended: list[UUID] = []
        self._announced: list[UUID] = []  # last
        self._is_repeated = False
        self._line = BrokerLine(broker)
        self._announcing = threading.Lock()  # for all of these
        self._rings = threading.Lock()  # for the next four
        self._seen: deque[str] = deque(maxlen=_MAX_SEEN)  # rings that were passed on, by whoever began them
        self._heard: Ring | None = None
        self._passing: Ring | None = None
        self._passed_on_at = float("-inf")
        self.loop = Loop("doorbell-sender", self.run_once, interval=3600)

    def ring(self, name: str) -> None:
        """Wake the workers of this doorbell soon, if the broker works. Returns at once."""
        self._wanted.put(name)
        self.loop.wake()

    def announce(self, ended: Collection[UUID]) -> None:
        """Tell callers that wait for these jobs that they have ended. Returns at once."""
        with self._announcing:
            self._ended += ended
            del self._ended[: -live_output.MAX_ENDED]
            if self._line.connection is not None and not self._line.is_awaited:
                self._send_announcement()
        self.loop.wake()

    def hear(self, ring: Ring) -> bool:
        """Note a ring that reached this worker.

        Returns:
            False if it has been here before.
        """
        with self._rings:
            if ring.begun_by in self._seen:
                return False
            if ring.begun_by:
                self._seen.append(ring.begun_by)
            self._heard = _merged(self._heard, ring)
        return True

    def pass_on(self) -> None:
        """Wake another worker soon with what was heard since the last call. Returns at once."""
        with self._rings:
            if self._heard is None:
                return
            self._passing, self._heard = _merged(self._passing, self._heard), None
        self.loop.wake()

    def acknowledge(self, name: str) -> None:
        """Mark this doorbell's ring as received, so that the next one is sent again."""
        doorbell.acknowledge(self.broker, name)

    def run_once(self) -> None:
        """Send every pending ring and end. One that cannot be sent is dropped."""
        self._announce()
        wanted: set[str] = set()
        while not self._wanted.empty():
            wanted.add(self._wanted.get())
        for name in wanted:
            doorbell.ring(self.broker, self._sender, name)
        self._pass_on()

    def finish(self) -> None:
        """Send at once whatever still waits, also what was heard; the thread has ended."""
        self.pass_on()
        self._passed_on_at = float("-inf")
        self.run_once()

    def _pass_on(self) -> None:
        """Send the ring to pass on, later if one was sent a moment ago: full engines pass on every ring."""
        with self._rings:
            now = time.monotonic()
            if self._passing is None:
                return
            if (early := self._passed_on_at + _PASS_ON_EVERY_SECONDS - now) > 0:
                self.loop.wake_within(early)
                return
            ring, self._passing = self._passing.passed_on(uuid7().hex), None
            if ring is None:
                return
            self._passed_on_at = now
            self._seen.append(ring.begun_by)
        doorbell.pass_on(self.broker, ring)

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


def _merged(first: Ring | None, second: Ring) -> Ring:
    """Return one ring for both: where they are two, a new one, as neither has been wherever the other has."""
    return second if first is None else Ring(second.name)


class DoorbellListener:
    """A thread that waits in Redis for the doorbells of a queue.

    Attributes:
        loop: a daemon: it may be waiting when the process ends.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        queue: str,
        on_ring: Callable[[str], None],
        *,
        hear: Callable[[Ring], bool] = lambda _: True,
    ) -> None:
        """Set up without listening.

        Args:
            settings: of the broker.
            queue: of the worker.
            on_ring: called with the doorbell's name; must be quick.
            hear: called before with the ring; False: it is none for this worker.
        """
        self._broker = doorbell.connect(
            settings.url.get_secret_value(), socket_timeout=settings.socket_timeout_seconds + _HEAR_SECONDS
        )
        self._queue = queue
        self._on_ring = on_ring
        self._hear = hear
        self._is_stopping = False
        self.loop = Loop("doorbell-listener", self.run_once, interval=0, daemon=True)

    def begin_stop(self) -> None:
        """Hear no more. Returns at once; a ring that still comes is passed on."""
        self._is_stopping = True
        self.loop.begin_stop()

    def run_once(self) -> None:
        """Wait for one ring, for a while."""
        ring = doorbell.hear(self._broker, self._queue, seconds=_HEAR_SECONDS)
        if ring is None:
            return
        if self._is_stopping:
            doorbell.pass_on(self._broker, ring)
        elif self._hear(ring):
            self._on_ring(ring.name)
            time.sleep(_AFTER_RING_SECONDS)


class ListeningThreads:
    """A worker's threads, and the one that hears its doorbells."""

    def __init__(self, threads: WorkerThreads, listener: DoorbellListener) -> None:
        self._threads = threads
        self._listener = listener

    def start(self) -> None:
        """Start the threads, then listen."""
        self._threads.start()
        self._listener.loop.start()

    def begin_stop(self) -> None:
        """Stop listening and taking on new work. Returns at once."""
        self._listener.begin_stop()
        self._threads.begin_stop()

    def stop(self) -> None:
        """Stop the threads and wait until they have ended."""
        self._listener.begin_stop()
        self._threads.stop()


RingBell = Callable[[str], None]
