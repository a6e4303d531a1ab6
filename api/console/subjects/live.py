"""What streams send to pages of subjects as these and their jobs move."""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol
from uuid import UUID

from fastapi import Request
from starlette.responses import Response

from api.console import live
from api.console.live import LivePages
from api.console.page import render_part
from api.console.subjects.kinds import SubjectPages
from api.runtime.event_streams import OpenStream
from jobs.models import Summary
from jobs.queries import JobStatus
from jobs.states import TERMINAL as ENDED_JOB
from jobs.states import JobState
from jobs.states.summary import TERMINAL
from jobs.summaries import SummaryStatus

Render = Callable[[UUID, SummaryStatus | JobStatus], str | None]


class SubjectRow(Protocol):
    """One in a list or a table; its status is None if it has ended."""

    @property
    def asked(self) -> Summary:
        """Return the row as it is stored."""

    @property
    def status(self) -> SummaryStatus | None:
        """Return what changes of it."""


def open_rows(rows: Iterable[SubjectRow]) -> list[UUID]:
    """Return those that have not ended."""
    return [row.asked.id for row in rows if row.status is not None]


def row_renderer(request: Request, pages: SubjectPages) -> Render:
    """Return what renders the state of a row that its stream has not told yet.

    The first one too: the page does not show what changed after it was made and before its stream opened.
    """
    shown: dict[UUID, SummaryStatus] = {}

    def render_row(row_id: UUID, status: SummaryStatus | JobStatus) -> str | None:
        if not isinstance(status, SummaryStatus) or shown.get(row_id) == status:
            return None
        shown[row_id] = status
        name = pages.kind.format(row_id)
        return render_part(request, "summaries/row_live.html", id=name, status=status)

    return render_row


def follow_one(
    request: Request,
    stream: OpenStream,
    watched: LivePages,
    asked: Summary,
    parts: Mapping[UUID, int],
    *,
    address: str,
    element: str,
) -> Response:
    """Stream the counts of one, and the states of its parts; at each of its states a reload of the page.

    Args:
        request: of the stream.
        stream: opened before the page was read.
        watched: what this process watches.
        asked: as the page shows it.
        parts: by their jobs, the numbers of those that have not ended.
        address: of the page, with what it shows.
        element: of the page, which a reload replaces.
    """
    reload = render_part(request, "reload_live.html", address=address, part=element)
    render_change = _part_renderer(request, asked, parts, reload=reload)
    followed = [] if asked.state in TERMINAL else [asked.id, *parts]
    return live.respond(stream, watched.summaries, followed, render_change, ended=reload)


def _part_renderer(request: Request, asked: Summary, parts: Mapping[UUID, int], *, reload: str) -> Render:
    def render_change(row_id: UUID, status: SummaryStatus | JobStatus) -> str | None:
        if isinstance(status, SummaryStatus):
            if status.state != asked.state:
                return reload
            return render_part(request, "summaries/progress_live.html", status=status)
        if status.state in ENDED_JOB and status.state != JobState.COMPLETED:  # it may be tried again
            return reload
        return render_part(request, "summaries/part_live.html", number=parts[row_id], state_name=status.state)

    return render_change
