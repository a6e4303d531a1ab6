"""What happens to a summary, as server-sent events."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any
from uuid import UUID

from api.http.sse import HEARTBEAT, event, merged
from api.runtime.services import Parts
from jobs.states.summary import TERMINAL as ENDED_SUMMARY


async def summary_events(
    parts: Parts, summary_id: UUID, read: Callable[[], Awaitable[Mapping[str, Any]]]
) -> AsyncGenerator[bytes, None]:
    """The summary at first and whenever its state or counts have changed, until it has ended.

    Args:
        parts: of the application.
        summary_id: whose.
        read: the summary as callers see it.
    """
    async with aclosing(merged(parts.summary_followers.changes(summary_id))) as changes:
        async for change in changes:
            if change is None:
                yield HEARTBEAT
                continue
            seen = await read()
            yield event("summary", seen, identifier=0)
            if seen["state"] in ENDED_SUMMARY:
                return
