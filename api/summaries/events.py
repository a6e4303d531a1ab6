"""Server-sent events of a summary."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any
from uuid import UUID

from api.http.sse import HEARTBEAT, event, merged
from api.runtime.services import Services
from jobs.states.summary import TERMINAL as ENDED_SUMMARY


async def summary_events(
    services: Services, summary_id: UUID, read: Callable[[], Awaitable[Mapping[str, Any]]]
) -> AsyncGenerator[bytes, None]:
    """Yield the summary first and whenever its state or counts change, to its end.

    Args:
        services: of the application.
        summary_id: of the summary to follow.
        read: reads the summary as callers see it.
    """
    async with aclosing(merged(services.summary_changes.changes(summary_id))) as changes:
        async for change in changes:
            if change is None:
                yield HEARTBEAT
                continue
            seen = await read()
            yield event("summary", seen, identifier=0)
            if seen["state"] in ENDED_SUMMARY:
                return
