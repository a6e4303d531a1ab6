"""Server-sent events: merged from several sources, with heartbeats that keep the connection open."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final, TypeVar

from pydantic_core import to_json

from api.http.errors import envelope, status_of
from jobs.errors import LongbatchError
from jobs.states.batch import TERMINAL as BATCH_TERMINAL
from jobs.states.summary import TERMINAL as SUMMARY_TERMINAL

T = TypeVar("T")

EVENT_STREAM: Final = "text/event-stream"
HEADERS: Final = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
# Proxies close connections that stay silent for long.
HEARTBEAT_SECONDS: Final = 10.0
HEARTBEAT: Final = b": still here\n\n"


def error_event(error: LongbatchError) -> bytes:
    """Render the error that ends a stream early as an event."""
    return b"event: error\ndata: " + to_json(envelope(status_of(error), error.code, error.message)) + b"\n\n"


async def merged(*sources: AsyncIterator[T]) -> AsyncGenerator[T | None, None]:
    """Yield items of all sources until one ends, and None after a silent interval.

    Raises:
        Exception: a source's own error, raised after all items that came before it.
    """
    found: asyncio.Queue[T] = asyncio.Queue()
    something = asyncio.Event()

    async def pump(source: AsyncIterator[T]) -> None:
        try:
            async for each in source:
                found.put_nowait(each)
                something.set()
        finally:
            something.set()

    pumps = [asyncio.create_task(pump(source)) for source in sources]
    try:
        while True:
            try:
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    await something.wait()
            except TimeoutError:
                yield None
                continue
            something.clear()
            has_ended = any(each.done() for each in pumps)
            while not found.empty():
                yield found.get_nowait()
            if has_ended:
                break
    finally:
        for each in pumps:
            each.cancel()
        ends = await asyncio.gather(*pumps, return_exceptions=True)
    for end in ends:
        if isinstance(end, Exception):
            raise end


async def object_events(
    name: str, changes: AsyncIterator[object], read: Callable[[], Awaitable[Mapping[str, Any]]]
) -> AsyncGenerator[bytes, None]:
    """Yield an object first and whenever its state or counts change, until it has ended.

    Args:
        name: of each event.
        changes: a first item, and one for each change.
        read: reads the object as callers see it.
    """
    async with aclosing(merged(changes)) as found:
        async for change in found:
            if change is None:
                yield HEARTBEAT
                continue
            seen = await read()
            yield event(name, seen, identifier=0)
            if (seen.get("state") or seen["status"]) in _ENDED:
                return


_ENDED: Final = frozenset({*BATCH_TERMINAL, *SUMMARY_TERMINAL})


def event(name: str, fields: Any, *, identifier: int | str) -> bytes:  # noqa: ANN401  # JSON
    """Encode one server-sent event."""
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (str(identifier).encode(), name.encode(), to_json(fields))
