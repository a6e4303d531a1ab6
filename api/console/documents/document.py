"""One document: what was extracted, or why nothing; its text with page marks when asked for."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Final
from uuid import UUID

from fastapi import Query, Request
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.console import live
from api.console.documents.listing import LIST
from api.console.documents.texts import PageText, cut_pages
from api.console.error_pages import page_router
from api.console.forms import ChangeDep
from api.console.live import LiveDep
from api.console.page import redirect, render, render_part
from api.console.reading import owner_of, read_for, tenant_names
from api.console.session import Viewer, ViewerDep
from api.http.dependencies import ServicesDep
from api.http.identifiers import DocumentIdDep
from api.runtime.services import Services
from jobs import documents, ids, summaries
from jobs.documents.queries import DocumentStatus
from jobs.errors import InvalidRequestError
from jobs.models.document import Document
from jobs.states.document import DocumentState

router = page_router()

# A browser lays out this much in a moment.
_SHOWN_CHARS: Final = 50_000
_MAX_CHARS: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ShownStretch:
    """A stretch of the text on the page.

    Attributes:
        end: one past its last character.
        next: where the next stretch begins; None: this is the last.
    """

    start: int
    end: int
    pages: list[PageText]
    next: int | None


@router.get("/documents/{document_id}")
async def show_document(
    request: Request,
    document_id: DocumentIdDep,
    services: ServicesDep,
    viewer: ViewerDep,
    show: str | None = None,
    start: Annotated[int, Query(ge=0, le=_MAX_CHARS)] = 0,
    page: Annotated[str, Query(max_length=9)] = "",
) -> Response:
    """Show the document; with `show=text` a stretch of its text, from a character or a page on."""
    read = partial(read_document, document_id=document_id, viewer=viewer)
    document, owner = await read_for(viewer, services, read)
    stretch = None
    if show == "text" and document.state == DocumentState.READY:
        if page:
            start = _start_of(document, page)
        stretch = await _read_stretch(viewer, services, document, start=start)
    name = ids.document_id(document_id)
    is_own = document.tenant_id == viewer.caller.tenant_id
    return render(
        request,
        "documents/one.html",
        title=f"Document {name[:16]}…",
        id=name,
        document=document,
        owner=owner,
        stretch=stretch,
        address=f"{LIST}/{name}",
        may_change=viewer.may_change and is_own,
        live_address=f"{LIST}/{name}/live" if document.state == DocumentState.EXTRACTING else None,
    )


@router.get("/documents/{document_id}/live")
async def follow_document(
    request: Request, document_id: DocumentIdDep, services: ServicesDep, viewer: ViewerDep, watched: LiveDep
) -> Response:
    """Stream the end of the extraction."""
    with services.event_streams.opening(viewer.caller, session=viewer.token) as stream:
        read = partial(read_document, document_id=document_id, viewer=viewer)
        document, _ = await read_for(viewer, services, read)

        address = f"{LIST}/{ids.document_id(document_id)}"
        reload = render_part(request, "reload_live.html", address=address, part="#document")

        def render_end(_: UUID, status: DocumentStatus) -> str | None:
            return None if status.state == DocumentState.EXTRACTING else reload

        followed = [document_id] if document.state == DocumentState.EXTRACTING else []
        return live.respond(stream, watched.documents, followed, render_end, ended=reload)


@router.get("/documents/{document_id}/delete")
async def confirm_delete(
    request: Request, document_id: DocumentIdDep, services: ServicesDep, viewer: ViewerDep
) -> Response:
    """Ask before the document is deleted."""
    await services.transact(documents.get, document_id=document_id, tenant_id=viewer.caller.tenant_id)
    address = f"{LIST}/{ids.document_id(document_id)}"
    question = (
        "The document and its text are deleted. Summaries, answers and extractions of it stay, with words"
        " that they quote; its page leads to them, where they are deleted."
    )
    return render(
        request,
        "confirm.html",
        title="Delete the document",
        question=question,
        address=address,
        verb="delete",
    )


@router.post("/documents/{document_id}/delete")
async def delete_document(
    document_id: DocumentIdDep, services: ServicesDep, viewer: ViewerDep, _form: ChangeDep
) -> Response:
    """Delete the document and its text."""
    await services.transact(
        documents.remove,
        document_id=document_id,
        tenant_id=viewer.caller.tenant_id,
        guards=[summaries.guard_document],
    )
    return redirect(LIST, done="The document is deleted.")


def read_document(session: Session, *, document_id: UUID, viewer: Viewer) -> tuple[Document, str | None]:
    """Read the document, and for operators the name of its owner.

    Raises:
        NotFoundError: the viewer sees no such document.
    """
    owner = owner_of(session, viewer, document_id, of=(Document.id, Document.tenant_id))
    names = tenant_names(session, viewer, [owner])
    return documents.get(session, document_id, tenant_id=owner), names.get(owner)


async def _read_stretch(
    viewer: Viewer, services: Services, document: Document, *, start: int
) -> ShownStretch:
    body = await read_for(viewer, services, partial(documents.load_body, document_id=document.id))
    end = start + _SHOWN_CHARS
    pages = await services.compute(len(body), cut_pages, body, document.pages, start=start, end=end)
    shown = sum(len(each.text) for each in pages)
    has_more = start + shown < (document.num_chars or 0)
    return ShownStretch(start, start + shown, pages, start + shown if has_more else None)


def _start_of(document: Document, page: str) -> int:
    """Return the character at which the page begins.

    Raises:
        InvalidRequestError: the document has no such page.
    """
    if page.isdecimal() and 1 <= int(page) <= len(document.pages):
        return document.pages[int(page) - 1]
    raise InvalidRequestError(f"The document has {len(document.pages)} pages.", param="page")
