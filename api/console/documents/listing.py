"""The list of documents, with filters in its address; rows follow the extraction while the page is open."""

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
from api.http.dependencies import ServicesDep
from jobs import ids
from jobs.documents.queries import DocumentFilter, DocumentStatus, search_documents
from jobs.models.document import Document
from jobs.states.document import DocumentState

router = page_router()

LIST: Final = "/console/documents"
STATES: Final = tuple(state for state in DocumentState if state != DocumentState.DELETED)
# `name` is a part of the filename or title.
_DOCUMENTS: Final = RowList(LIST, ids.DOCUMENT, filters=("state", "name", "tenant"), values={"state": STATES})


@router.get("/documents")
async def show_documents(request: Request, services: ServicesDep, viewer: ViewerDep) -> Response:
    """Show a page of documents, newest first."""
    query = _DOCUMENTS.parse(request.query_params)
    page = await read_for(viewer, services, partial(read_page, query=query, viewer=viewer))
    return render(
        request,
        "documents/list.html",
        title="Documents",
        page=page,
        rows=[(ids.document_id(each), row) for each, row in page.rows.items()],
        fields=query.fields,
        states=STATES,
        links=query.links(next_after=page.next, is_live=bool(_extracting(page))),
    )


@router.get("/documents/live")
async def follow_documents(
    request: Request, services: ServicesDep, viewer: ViewerDep, watched: LiveDep
) -> Response:
    """Stream the changes of the page's documents that are being extracted."""
    query = _DOCUMENTS.parse(request.query_params)
    with services.event_streams.opening(viewer.caller, session=viewer.token) as stream:
        page = await read_for(viewer, services, partial(read_page, query=query, viewer=viewer))

        def render_row(document_id: UUID, status: DocumentStatus) -> str:
            name = ids.document_id(document_id)
            return render_part(request, "documents/row_live.html", id=name, status=status)

        return live.respond(stream, watched.documents, _extracting(page), render_row)


def read_page(session: Session, *, query: ListQuery, viewer: Viewer) -> ListPage[Document]:
    """Read a page of the list, in a bounded number of rows; raise as `ListQuery.range_for` does."""
    which = DocumentFilter(query.chosen.get("state"), query.chosen.get("name"))
    found = search_documents(session, which, query.range_for(session, viewer))
    names = tenant_names(session, viewer, [each.tenant_id for each in found.items])
    return ListPage({each.id: each for each in found.items}, names, found.next, found.is_cut)


def _extracting(page: ListPage[Document]) -> list[UUID]:
    """Return the documents whose texts are being extracted."""
    return [each for each, row in page.rows.items() if row.state == DocumentState.EXTRACTING]
