"""Run exchanges concurrently: an event loop in its own thread, fed from a thread without one."""

import asyncio
import queue
import threading
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Generic, TypeVar

import uvloop

from jobs import liveness

Work = TypeVar("Work")
Result = TypeVar("Result")


class Senders(Generic[Work, Result]):
    """Sends all work that is handed in concurrently.

    Attributes:
        ended: the results, in the order in which they arrived.
    """

    def __init__(
        self, send: Callable[[Work], Coroutine[Any, Any, Result]], *, on_ended: Callable[[], None]
    ) -> None:
        """Set up without starting.

        Args:
            send: must end in time and never raise.
            on_ended: called in the loop's thread after each result.
        """
        self.ended: queue.SimpleQueue[Result] = queue.SimpleQueue()
        self._send = send
        self._on_ended = on_ended
        self._loop = uvloop.new_event_loop()
        self._stopped = asyncio.Event()
        # A daemon, so that a process can end without `stop`.
        self._thread = threading.Thread(
            target=liveness.guarded("senders", self._run), name="senders", daemon=True
        )
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Start the loop's thread."""
        self._thread.start()

    def hand_in(self, work: Iterable[Work]) -> None:
        """Start to send each item."""
        self._loop.call_soon_threadsafe(self._begin, list(work))

    def stop(self) -> None:
        """Stop the loop and abort the exchanges under way."""
        if not self._thread.is_alive():
            self._loop.close()  # does nothing if it has run
            return
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:  # cancels what is left
            runner.run(self._stopped.wait())

    def _begin(self, work: list[Work]) -> None:
        for each in work:
            task = self._loop.create_task(self._send_one(each))
            self._tasks.add(task)  # the loop itself holds tasks weakly
            task.add_done_callback(self._tasks.discard)

    async def _send_one(self, work: Work) -> None:
        self.ended.put(await self._send(work))
        self._on_ended()
