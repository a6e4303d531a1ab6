"""A relay of TCP connections in a thread of its own: to a target that can change, at a delay that can."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

Address = tuple[str, int]
_CHUNK: Final = 65536
_START_S: Final = 10
# A caller that vanished is noticed after a minute, as by a server with these settings.
_KEEPALIVE: Final = {socket.TCP_KEEPIDLE: 30, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 3}


@dataclass
class Relay:
    """Where connections go from now on; those that are open stay where they are.

    Attributes:
        target: of new connections.
        delay_s: before each piece, in either direction.
        port: on which it listens; 0: any free one.
        num_open: connections by the address to which they go.
    """

    target: Address
    delay_s: float = 0.0
    port: int = 0
    num_open: dict[Address, int] = field(default_factory=dict)
    # A stream does not keep the task that reads it.
    _kept: set[asyncio.Task[None] | None] = field(default_factory=set)

    async def serve(self, host: str, ready: threading.Event, over: asyncio.Event) -> None:
        """Relay connections until `over` is set."""
        server = await asyncio.start_server(self._connected, host, self.port)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            ready.set()
            await over.wait()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target, task = self.target, asyncio.current_task()
        self._kept.add(task)
        self.num_open[target] = self.num_open.get(target, 0) + 1
        try:
            caller: socket.socket = writer.get_extra_info("socket")
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEPALIVE.items():
                caller.setsockopt(socket.IPPROTO_TCP, option, value)
            there, back = await asyncio.open_connection(*target)
            try:
                await asyncio.gather(self._pump(reader, back), self._pump(there, writer))
            finally:
                back.close()
        except (OSError, asyncio.CancelledError):
            pass  # broken, or over
        finally:
            writer.close()
            self.num_open[target] -= 1
            self._kept.discard(task)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        """Carry bytes until the source ends, then end the sink's direction; a broken source ends both.

        Raises:
            OSError: either connection broke.
        """
        while piece := await source.read(_CHUNK):
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            sink.write(piece)
            await sink.drain()
        if sink.can_write_eof():
            sink.write_eof()


async def _cancel_all() -> None:
    """End the connections that are open."""
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


@contextmanager
def relaying(
    target: Address,
    *,
    delay_s: float = 0.0,
    port: int = 0,
    host: str = "127.0.0.1",
    enter: Callable[[], None] = lambda: None,
) -> Iterator[Relay]:
    """Relay for the block.

    Args:
        target: where connections go first.
        delay_s: before each piece.
        port: to listen on; 0: any free one.
        host: to listen on.
        enter: called in the relay's thread before it listens.
    """
    relay = Relay(target, delay_s, port)
    loop, ready, over = asyncio.new_event_loop(), threading.Event(), asyncio.Event()

    def run() -> None:
        enter()
        loop.run_until_complete(relay.serve(host, ready, over))
        loop.run_until_complete(_cancel_all())
        loop.close()

    thread = threading.Thread(target=run, name="relay", daemon=True)
    thread.start()
    if not ready.wait(_START_S):
        raise TimeoutError("the relay does not listen")
    try:
        yield relay
    finally:
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(over.set)
        thread.join(_START_S)
