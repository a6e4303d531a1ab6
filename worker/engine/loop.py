"""The event loop of all connections to engines: one daemon thread of the process runs it."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from typing import Any, Final, TypeVar

import uvloop

from jobs import liveness

T = TypeVar("T")

_starting: Final = threading.Lock()
_loops: Final[list[asyncio.AbstractEventLoop]] = []
_tasks: Final[set["asyncio.Task[object]"]] = set()


def run(work: Coroutine[Any, Any, T], *, timeout: float | None = None) -> T:
    """Run a coroutine on the engine loop and wait for its result.

    Raises:
        TimeoutError: it took longer than `timeout` seconds.
    """
    return start(work).result(timeout)


def start(work: Coroutine[Any, Any, T]) -> Future[T]:
    """Start a coroutine on the engine loop. Keep the future: it keeps the coroutine alive."""
    return asyncio.run_coroutine_threadsafe(work, _engine_loop())


def start_all(works: Iterable[Coroutine[Any, Any, object]]) -> None:
    """Start coroutines on the engine loop, which wakes up once for all of them."""

    def start_them() -> None:
        for each in works:
            task = asyncio.create_task(each)
            _tasks.add(task)  # the event loop does not keep it alive
            task.add_done_callback(_tasks.discard)

    call(start_them)


def call(work: Callable[[], object]) -> None:
    """Call a function on the engine loop soon."""
    _engine_loop().call_soon_threadsafe(work)


def _engine_loop() -> asyncio.AbstractEventLoop:
    """Start the loop at its first use."""
    with _starting:
        if not _loops:
            _loops.append(uvloop.new_event_loop())  # a third less CPU for a short stream
            # A daemon: a connection that never ends must not keep the process alive.
            threading.Thread(
                target=liveness.guarded("connections", _loops[0].run_forever), name="connections", daemon=True
            ).start()
    return _loops[0]
