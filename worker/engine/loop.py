"""The event loop of all connections to engines: one daemon thread of the process runs it."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, TypeVar

T = TypeVar("T")

_starting: Final = threading.Lock()
_loops: Final[list[asyncio.AbstractEventLoop]] = []


def run(work: Coroutine[Any, Any, T], *, timeout: float | None = None) -> T:
    """Run a coroutine on the engine loop and wait for its result.

    Raises:
        TimeoutError: it took longer than `timeout` seconds.
    """
    return start(work).result(timeout)


def start(work: Coroutine[Any, Any, T]) -> Future[T]:
    """Start a coroutine on the engine loop. Keep the future: it keeps the coroutine alive."""
    return asyncio.run_coroutine_threadsafe(work, _engine_loop())


def call(work: Callable[[], object]) -> None:
    """Call a function on the engine loop soon."""
    _engine_loop().call_soon_threadsafe(work)


def _engine_loop() -> asyncio.AbstractEventLoop:
    """Start the loop at its first use."""
    with _starting:
        if not _loops:
            _loops.append(asyncio.new_event_loop())
            # A daemon: a connection that never ends must not keep the process alive.
            threading.Thread(target=_loops[0].run_forever, name="connections", daemon=True).start()
    return _loops[0]
