"""Server-sent events of a batch."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from api.http.sse import HEARTBEAT, event, merged
from api.runtime.services import Services
from jobs.batches.views import batch_object
from jobs.models.batch import Batch
from jobs.states.batch import TERMINAL as ENDED_BATCH


async def batch_events(
    services: Services, batch: Batch, read: Callable[[], Awaitable[Batch]]
) -> AsyncGenerator[bytes, None]:
    """Yield the batch first and whenever its state or counts change, until it ends.

    Args:
        services: of the application.
        batch: its current row.
        read: reads the row again.
    """
    async with aclosing(merged(services.batch_changes.changes(batch.id))) as changes:
        async for change in changes:
            if change is None:
                yield HEARTBEAT
                continue
            batch = await read()
            yield event("batch", batch_object(batch), identifier=0)
            if batch.state in ENDED_BATCH:
                return
