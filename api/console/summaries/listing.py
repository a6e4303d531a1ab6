"""The list of summaries, with filters in its address; its rows grow while the page is open."""

from dataclasses import dataclass
from functools import partial
from typing import Final
from uuid import UUID

from fastapi import Request
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.console import live
from api.console.error_pages import page_router
from api.console.lists import ListPage, ListQuery, RowList
from api.console.live import LiveDep
from api.console.page import render, render_part
from api.console.reading import read_for, tenant_names
from api.console.session import Viewer, ViewerDep
from api.console.subjects import SUBJECTS
from api.http.dependencies import ServicesDep
from jobs import ids, summaries
from jobs.models import Summary
from jobs.queries import JobStatus
from jobs.states.summary import TERMINAL, Purpose, SummaryState
from jobs.summaries import SummaryFilter, SummaryStatus, parts
from jobs.summaries.parts import SummarySources

router = page_router()

LIST: Final = SUBJECTS[Purpose.SUMMARY].address
STATES: Final = tuple(SummaryState)
_SUMMARIES: Final = RowList(
    LIST,
    ids.SUMMARY,
    filters=("state", "document", "custom_id", "tenant"),
    values={"state": STATES},
    ids={"document": ids.DOCUMENT},
)


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """A summary in the list.

    Attributes:
        sources: None: it has no documents any more.
        status: None: it has ended.
    """

    summary: Summary
    sources: SummarySources | None
    status: SummaryStatus | None


@router.get("/summaries")
async def show_summaries(request: Request, services: ServicesDep, viewer: ViewerDep) -> Response:
    """Show a page of summaries, newest first."""
    query = _SUMMARIES.parse(request.query_params)
    page = await read_for(viewer, services, partial(read_page, query=query, viewer=viewer))
    return render(
        request,
        "summaries/list.html",
        title="Summaries",
        page=page,
        rows=[(ids.summary_id(each), row) for each, row in page.rows.items()],
        fields=query.fields,
        states=STATES,
        links=query.links(next_after=page.next, is_live=bool(_open(page))),
    )


@router.get("/summaries/live")
async def follow_summaries(
    request: Request, services: ServicesDep, viewer: ViewerDep, watched: LiveDep
) -> Response:
    """Stream the changes of the page's summaries that have not ended."""
    query = _SUMMARIES.parse(request.query_params)
    with services.event_streams.opening(viewer.caller, session=viewer.token) as stream:
        page = await read_for(viewer, services, partial(read_page, query=query, viewer=viewer))
        shown = _open(page)

        def render_row(summary_id: UUID, status: SummaryStatus | JobStatus) -> str | None:
            if not isinstance(status, SummaryStatus) or shown.get(summary_id) == status:
                return None
            shown[summary_id] = status
            name = ids.summary_id(summary_id)
            return render_part(request, "summaries/row_live.html", id=name, status=status)

        return live.respond(stream, watched.summaries, list(shown), render_row)


def read_page(session: Session, *, query: ListQuery, viewer: Viewer) -> ListPage[SummaryRow]:
    """Read a page of the list, in a bounded number of rows; raise as `ListQuery.range_for` does."""
    which = SummaryFilter(
        state=query.chosen.get("state"),
        custom_id=query.chosen.get("custom_id"),
        document_id=query.ids["document"],
    )
    found = parts.search_summaries(session, which, query.range_for(session, viewer))
    names = tenant_names(session, viewer, [each.tenant_id for each in found.items])
    sources = parts.read_sources(session, [each.id for each in found.items])
    are_open = [each.id for each in found.items if each.state not in TERMINAL]
    status = summaries.read_status(session, are_open)
    rows = {each.id: SummaryRow(each, sources.get(each.id), status.get(each.id)) for each in found.items}
    return ListPage(rows, names, found.next, found.is_cut)


def _open(page: ListPage[SummaryRow]) -> dict[UUID, SummaryStatus]:
    """Return what the page shows of summaries that have not ended."""
    return {summary_id: row.status for summary_id, row in page.rows.items() if row.status is not None}
