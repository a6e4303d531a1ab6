"""One request to the engine as a thread sees it: start, stop, close, and events in an inbox."""

import threading
from collections.abc import Callable
from typing import Final

from jobs import telemetry
from jobs.errors import RetryableEngineError
from worker.engine import loop
from worker.engine.deltas import EngineDelta
from worker.engine.engine import EngineCall, StreamEnd
from worker.engine.storable import storable

_SEND_SECONDS: Final = 0.1
_CLOSE_SECONDS: Final = 15.0


async def run_to_end(
    call: EngineCall, put: Callable[[EngineDelta | StreamEnd], None], *, sent: Callable[[], None]
) -> StreamEnd:
    """Send a request and pass on its deltas; whatever goes wrong becomes the end of its stream."""
    try:
        return await call.run(put, sent=sent)
    except Exception as error:  # noqa: BLE001  # the coroutine's entry point
        telemetry.logger().exception(telemetry.LOOP_FAILED, loop="stream")
        return StreamEnd(RetryableEngineError(said=storable(repr(error))), confirmed=False)


class Stream:
    """One request and its connection, which the engine loop serves.

    It passes events to `put`: any number of deltas, then one StreamEnd. The owner never depends on the loop
    alone: if an event is late, the owner calls `close` and continues.
    """

    def __init__(self, call: EngineCall, *, put: Callable[[EngineDelta | StreamEnd], None]) -> None:
        """Prepare the stream without sending the request.

        Args:
            call: the request.
            put: receives every event, on the engine loop; it must not block.
        """
        self._call = call
        self._put = put
        self._is_on_its_way = threading.Event()
        self._has_ended = threading.Event()
        self._has_ended.set()  # nothing runs yet

    def connect(self) -> None:
        """Connect, waiting a few seconds at most. For measuring a request without its connection."""
        loop.run(self._call.connect())

    def start(self) -> None:
        """Send the request. Waits a moment for it to be on its way."""
        self._has_ended.clear()
        self._running = loop.start(self._run())  # keeps it alive
        self._is_on_its_way.wait(_SEND_SECONDS)

    def stop(self) -> None:
        """Ask the engine to end the request; the stream continues until it has ended.

        If a stop request cannot reach the engine, the stream is cut and its end stays unconfirmed.
        """
        loop.call(self._call.stop)

    def cancel(self) -> None:
        """Cut the stream. The server ends the request when it notices."""
        loop.call(self._call.cancel)

    def close(self) -> bool:
        """Close the connection. Returns True if the stream has ended too."""
        try:
            loop.run(self._call.close(), timeout=_CLOSE_SECONDS)
        except TimeoutError:
            return False
        return self._has_ended.wait(_SEND_SECONDS)

    async def _run(self) -> None:
        ended = await run_to_end(self._call, self._put, sent=self._is_on_its_way.set)
        self._is_on_its_way.set()
        self._has_ended.set()
        self._put(ended)
