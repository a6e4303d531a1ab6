"""The list of documents, with filters in its address; rows follow the extraction while the page is open."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final
from uuid import UUID

from fastapi import Request
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.console import formats, live
from api.console.error_pages import page_router
from api.console.live import LiveDep
from api.console.page import render, render_part
from api.console.reading import PAGE, WINDOW, read_for, tenant_names, tenant_of
from api.console.session import Viewer, ViewerDep
from api.http.dependencies import ServicesDep
from api.http.event_responses import EventResponse
from api.http.identifiers import parse_optional
from jobs import ids, tenants
from jobs.documents.queries import DocumentFilter, DocumentStatus, search_documents
from jobs.errors import InvalidRequestError
from jobs.models.document import Document
from jobs.states.document import DocumentState

router = page_router()

LIST: Final = "/console/documents"
STATES: Final = tuple(state for state in DocumentState if state != DocumentState.DELETED)
_NAMES: Final = ("state", "name", "tenant")


@dataclass(frozen=True, slots=True)
class DocumentsQuery:
    """What the address of the list asks for.

    Attributes:
        name: a part of the filename or title.
        tenant: its name; only operators may choose. None: all that the viewer sees.
        after: the page goes on after this document.
    """

    state: str | None = None
    name: str | None = None
    tenant: str | None = None
    after: UUID | None = None

    @property
    def fields(self) -> dict[str, str | None]:
        """The filters as they are in the address, without the place."""
        return {name: getattr(self, name) for name in _NAMES}


@dataclass(frozen=True, slots=True)
class DocumentsPage:
    """A page of the list.

    Attributes:
        tenants: names of the owners, for operators.
        next: the id after which the search goes on; None: there are no more.
        is_cut: the search stopped before it had filled the page.
    """

    documents: Mapping[UUID, Document]
    tenants: Mapping[UUID, str]
    next: UUID | None
    is_cut: bool

    @property
    def extracting(self) -> list[UUID]:
        """The documents whose texts are being extracted."""
        return [each for each, row in self.documents.items() if row.state == DocumentState.EXTRACTING]


@router.get("/documents")
async def show_documents(request: Request, services: ServicesDep, viewer: ViewerDep) -> Response:
    """Show a page of documents, newest first."""
    query = parse_query(request.query_params)
    page = await read_for(viewer, services, partial(read_page, query=query, viewer=viewer))
    fields = query.fields
    after = None if page.next is None else ids.document_id(page.next)
    place = None if query.after is None else ids.document_id(query.after)
    return render(
        request,
        "documents/list.html",
        title="Documents",
        page=page,
        rows=[(ids.document_id(each), row) for each, row in page.documents.items()],
        fields=fields,
        states=STATES,
        first_address=LIST + formats.query(fields),
        next_address=after and LIST + formats.query(fields | {"after": after}),
        live_address=f"{LIST}/live" + formats.query(fields | {"after": place}) if page.extracting else None,
        is_first=query.after is None,
    )


@router.get("/documents/live")
async def follow_documents(
    request: Request, services: ServicesDep, viewer: ViewerDep, watched: LiveDep
) -> Response:
    """Stream the changes of the page's documents that are being extracted."""
    query = parse_query(request.query_params)
    with services.event_streams.opening(viewer.caller) as stream:
        page = await read_for(viewer, services, partial(read_page, query=query, viewer=viewer))
        if not page.extracting:
            stream.release()
            return Response(status_code=204)  # ends the browser's tries

        def render_row(document_id: UUID, status: DocumentStatus) -> str:
            name = ids.document_id(document_id)
            return render_part(request, "documents/row_live.html", id=name, status=status)

        return EventResponse(stream, live.follow(watched.documents, page.extracting, render_row))


def parse_query(given: Mapping[str, str]) -> DocumentsQuery:
    """Read the filters of an address; empty ones are not chosen.

    Raises:
        InvalidRequestError: a value is none that the form offers.
    """
    chosen = formats.chosen(given, (*_NAMES, "after"))
    if "state" in chosen and chosen["state"] not in STATES:
        raise InvalidRequestError("The filter 'state' has none of its values.", param="state")
    after = parse_optional(
        chosen.pop("after", None), ids.parse_document_id, param="after", message="There is no such page."
    )
    return DocumentsQuery(after=after, **chosen)


def read_page(session: Session, *, query: DocumentsQuery, viewer: Viewer) -> DocumentsPage:
    """Read a page of the list, in a bounded number of rows.

    Raises:
        NotFoundError: there is no tenant of the name in the query, or the viewer may not choose one.
    """
    owner = tenant_of(viewer)
    if query.tenant is not None:
        owner = tenants.named(session, query.tenant).id
    found, following = search_documents(
        session,
        DocumentFilter(query.state, query.name),
        tenant_id=owner,
        after=query.after,
        limit=PAGE,
        window=WINDOW,
    )
    names = tenant_names(session, [each.tenant_id for each in found.items]) if viewer.is_operator else {}
    rows = {each.id: each for each in found.items}
    return DocumentsPage(rows, names, following, is_cut=following is not None and not found.has_more)
