"""Live updates: one stream a page, and one query a second for all who watch pages of one kind."""

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Hashable,
    Mapping,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager
from hashlib import sha256
from typing import Annotated, Final, TypeVar
from uuid import UUID

from fastapi import Depends, Request
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.console.engines.activity import EngineActivity, read_activities
from api.console.engines.forecasts import PictureForecasts
from api.console.engines.picture import Shelves
from api.http.event_responses import EventResponse
from api.http.sse import HEARTBEAT, merged
from api.runtime.event_streams import OpenStream
from api.runtime.row_changes import Read, RowChanges
from api.runtime.services import Services
from jobs import queries, summaries
from jobs.batches.progress import BatchProgress, read_progress
from jobs.documents.queries import DocumentStatus
from jobs.documents.queries import read_status as read_documents
from jobs.queries import JobStatus
from jobs.summaries import SummaryStatus
from jobs.webhooks.queries import (
    DispatchStates,
    EndpointCondition,
    read_conditions,
    read_dispatch_states,
)

Status = TypeVar("Status", bound=Hashable)
_SECONDS: Final = 1.0
_PAUSE_OF_SUMMARIES: Final = 2.0  # a look takes two statements
_MAX_SHARED: Final = 64  # parts, of some 100 kB each
# Then the browser connects anew, and the session is checked again.
_STREAM_SECONDS: Final = 300.0


class SharedParts:
    """The newest HTML of parts that many streams show alike, rendered once for each new state."""

    def __init__(self) -> None:
        self._parts: dict[Hashable, tuple[object, str]] = {}

    def html(self, key: Hashable, state: object, render: Callable[[], str]) -> str:
        """Return the part's HTML.

        Args:
            key: what else than the state it depends on: what is shown, and to whom.
            state: the same object for all streams.
            render: makes the HTML if no stream has shown this state yet.
        """
        known = self._parts.get(key)
        if known is None or known[0] is not state:
            if len(self._parts) >= _MAX_SHARED:
                self._parts.clear()
            known = self._parts[key] = (state, render())
        return known[1]


class LivePages:
    """What the pages of this process watch.

    Attributes:
        jobs: the states and tokens of jobs.
        batches: how far batches are.
        dispatches: the deliveries of webhook events, by the event.
        endpoints: whether endpoints of webhooks are enabled, and how they fail.
        documents: the states of documents while their texts are extracted.
        summaries: the counts of summaries, and the jobs of their trees.
        engines: what runs on engines.
        forecasts: of what engines will do, as pictures show it.
        shelves: where the bars of an engine's picture lie, by its name.
        pictures: the moving parts of engines' pages.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._watches: list[RowChanges[object]] = []
        self.jobs: RowChanges[JobStatus] = self.watch(queries.read_status)
        self.batches: RowChanges[BatchProgress] = self.watch(read_progress)
        self.dispatches: RowChanges[DispatchStates] = self.watch(read_dispatch_states)
        self.endpoints: RowChanges[EndpointCondition] = self.watch(read_conditions)
        self.documents: RowChanges[DocumentStatus] = self.watch(read_documents)
        self.summaries: RowChanges[SummaryStatus | JobStatus] = self.watch(
            _read_summaries, pause=_PAUSE_OF_SUMMARIES
        )
        self.engines: RowChanges[EngineActivity] = self.watch(read_activities)
        self.forecasts = PictureForecasts(services.queue_positions.forecast_of)
        self.shelves: dict[str, Shelves] = {}
        self.pictures = SharedParts()

    def watch(self, read: "Read[Status]", *, pause: float = _SECONDS) -> "RowChanges[Status]":
        """Make what follows rows, or whatever else has an id, with one query a second at most."""
        made = RowChanges(self._services.transactions, read, interval=_SECONDS, pause=pause)
        self._watches.append(made)  # type: ignore[arg-type]  # run and released, whatever it publishes
        self._services.followers.append(made)
        return made

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Poll what is watched for as long as the context lasts."""
        tasks = [asyncio.create_task(each.run()) for each in self._watches]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _read_summaries(session: Session, row_ids: Sequence[UUID]) -> Mapping[UUID, SummaryStatus | JobStatus]:
    """Read summaries and jobs, whose ids never meet."""
    found = summaries.read_status(session, row_ids)
    others = [each for each in row_ids if each not in found]
    return {**found, **(queries.read_status(session, others) if others else {})}


async def find_live(request: Request) -> LivePages:
    """Return what the pages of the running application watch."""
    found: LivePages = request.app.state.live_pages
    return found


LiveDep = Annotated[LivePages, Depends(find_live)]


def respond(
    stream: OpenStream,
    watch: "RowChanges[Status]",
    row_ids: Collection[UUID],
    render: Callable[[UUID, Status], str | None],
    *,
    ended: str | None = None,
) -> Response:
    """Stream the changes of these rows; if there are none, end the browser's tries.

    Args:
        stream: the place of this one.
        watch: of the rows.
        row_ids: none: they have ended.
        render: see `follow`.
        ended: HTML that then brings a page up to date which was made before; None: it needs nothing.
    """
    if row_ids:
        return EventResponse(stream, follow(watch, row_ids, render))
    if ended is not None:
        return EventResponse(stream, _once(ended))
    stream.release()
    return Response(status_code=204)


async def _once(html: str) -> AsyncGenerator[bytes, None]:
    yield html_event(html)


def fingerprint(shown: Hashable) -> str:
    """Name what a page shows, by which its stream knows whether that is over."""
    return sha256(repr(shown).encode()).hexdigest()[:16]


async def follow(
    watch: "RowChanges[Status]",
    ids: Collection[UUID],
    render: Callable[[UUID, Status], str | None],
) -> AsyncGenerator[bytes, None]:
    """Yield an event for each change of these rows, and heartbeats; see `follow_each`."""

    async def rendered(row_id: UUID, status: Status) -> str | None:
        return render(row_id, status)

    async with aclosing(follow_each(watch, ids, rendered)) as events:
        async for event in events:
            yield event


async def follow_each(
    watch: "RowChanges[Status]",
    ids: Collection[UUID],
    render: Callable[[UUID, Status], Awaitable[str | None]],
) -> AsyncGenerator[bytes, None]:
    """Yield an event for each change of these rows, and heartbeats.

    It ends after some minutes, with the server, or when one of the rows is deleted.

    Args:
        watch: of these rows.
        ids: of the rows that the page shows; at least one.
        render: returns the HTML that shows a row's new state; None: the page shows that already.
    """

    async def changes(row_id: UUID) -> AsyncGenerator[tuple[UUID, Status], None]:
        async with aclosing(watch.changes(row_id)) as found:
            async for status in found:
                yield row_id, status

    loop = asyncio.get_running_loop()
    until = loop.time() + _STREAM_SECONDS
    async with aclosing(merged(*(changes(each) for each in ids))) as all_changes:
        async for change in all_changes:
            html = await render(*change) if change else None
            yield HEARTBEAT if html is None else html_event(html)
            if loop.time() > until:
                return


def html_event(html: str) -> bytes:
    """Encode HTML as a server-sent event, which htmx swaps into the page."""
    lines = "".join(f"data: {line}\n" for line in html.splitlines())
    return f"{lines}\n".encode()
