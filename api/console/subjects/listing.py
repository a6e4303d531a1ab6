"""The list of subjects of one kind, with filters in its address; its rows grow while the page is open."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, TypeVar

from fastapi import APIRouter, Request
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.console import live
from api.console.error_pages import page_router
from api.console.lists import ListPage, ListQuery, RowList
from api.console.live import LiveDep
from api.console.page import render
from api.console.reading import read_for, tenant_names
from api.console.session import Viewer, ViewerDep
from api.console.subjects.kinds import SubjectPages
from api.console.subjects.live import SubjectRow, open_rows, row_renderer
from api.http.dependencies import ServicesDep
from jobs import ids
from jobs.models import Summary
from jobs.states.summary import SummaryState
from jobs.summaries import SummaryFilter, parts

Row = TypeVar("Row", bound=SubjectRow)
_STATES: Final = tuple(SummaryState)


@dataclass(frozen=True, slots=True)
class SubjectList(Generic[Row]):
    """The list of one kind.

    Attributes:
        title: of the page.
        template: of the page.
        read_rows: reads what it shows of these, in order, with few queries in all.
    """

    pages: SubjectPages
    title: str
    template: str
    read_rows: Callable[[Session, Sequence[Summary]], list[Row]]

    @property
    def rows(self) -> RowList:
        """What its address may choose."""
        return RowList(
            self.pages.address,
            self.pages.kind,
            filters=("state", "document", "custom_id", "tenant"),
            values={"state": _STATES},
            ids={"document": ids.DOCUMENT},
        )


def list_routes(of: SubjectList[Row]) -> APIRouter:
    """Make the routes of the list of a kind."""
    router = page_router()

    @router.get(of.pages.path)
    async def show_list(request: Request, services: ServicesDep, viewer: ViewerDep) -> Response:
        """Show a page of the list, newest first."""
        query = of.rows.parse(request.query_params)
        page = await read_for(viewer, services, partial(read_page, of, query=query, viewer=viewer))
        return render(
            request,
            of.template,
            title=of.title,
            list_address=of.pages.address,
            page=page,
            rows=[(of.pages.kind.format(each), row) for each, row in page.rows.items()],
            fields=query.fields,
            states=_STATES,
            links=query.links(next_after=page.next, is_live=bool(open_rows(page.rows.values()))),
        )

    @router.get(f"{of.pages.path}/live")
    async def follow_list(
        request: Request, services: ServicesDep, viewer: ViewerDep, watched: LiveDep
    ) -> Response:
        """Stream the changes of those on the page that have not ended."""
        query = of.rows.parse(request.query_params)
        with services.event_streams.opening(viewer.caller, session=viewer.token) as stream:
            page = await read_for(viewer, services, partial(read_page, of, query=query, viewer=viewer))
            followed = open_rows(page.rows.values())
            return live.respond(stream, watched.summaries, followed, row_renderer(request, of.pages))

    return router


def read_page(of: SubjectList[Row], session: Session, *, query: ListQuery, viewer: Viewer) -> ListPage[Row]:
    """Read a page of the list, in a bounded number of rows; raise as `ListQuery.range_for` does."""
    which = SummaryFilter(
        state=query.chosen.get("state"),
        custom_id=query.chosen.get("custom_id"),
        document_id=query.ids["document"],
    )
    wanted = query.range_for(session, viewer)
    found = parts.search_summaries(session, which, wanted, purpose=of.pages.purpose)
    names = tenant_names(session, viewer, [each.tenant_id for each in found.items])
    rows = {each.asked.id: each for each in of.read_rows(session, found.items)}
    return ListPage(rows, names, found.next, found.is_cut)
