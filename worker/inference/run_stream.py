"""One request of a run, as a coroutine on the engine loop sees it; `engine.stream` is for threads."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from worker.engine.deltas import EngineDelta
from worker.engine.engine import EngineCall, StreamEnd
from worker.engine.stream import run_to_end

_CLOSE_SECONDS: Final = 15.0


class RunStream:
    """A request that puts its events into an inbox: any number of deltas, then one StreamEnd."""

    def __init__(
        self,
        call: EngineCall,
        *,
        put: Callable[[EngineDelta | StreamEnd], None],
        sent: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare the stream without sending the request.

        Args:
            call: the request.
            put: receives every event; it must not block.
            sent: called once the request is written, or never will be.
        """
        self._call = call
        self._put = put
        self._sent = sent
        self._running: asyncio.Task[None] | None = None  # keeps it alive

    def start(self) -> None:
        """Send the request soon."""
        self._running = asyncio.create_task(self._run())

    def stop(self) -> None:
        """Ask the engine to end the request; the stream continues until it has ended.

        If a stop request cannot reach the engine, the stream is cut and its end stays unconfirmed.
        """
        self._call.stop()

    def cancel(self) -> None:
        """Cut the stream. The server ends the request when it notices."""
        self._call.cancel()

    async def close(self) -> None:
        """Close the connection, within a bounded time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._call.close()

    async def _run(self) -> None:
        end = await run_to_end(self._call, self._put, sent=self._sent)
        self._sent()  # or it never will be
        self._put(end)
