"""The list of batches, with filters in its address; its rows grow while the page is open."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final
from uuid import UUID

from fastapi import Request
from sqlalchemy import select
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
from jobs import batches, ids, tenants
from jobs.batches.progress import BatchProgress, read_progress
from jobs.errors import InvalidRequestError
from jobs.models.batch import Batch
from jobs.models.file import File
from jobs.states.batch import ACTIVE, BatchState

router = page_router()

LIST: Final = "/console/batches"
STATES: Final = tuple(BatchState)
_NAMES: Final = ("state", "tenant")


@dataclass(frozen=True, slots=True)
class BatchesQuery:
    """What the address of the list asks for.

    Attributes:
        tenant: its name; only operators may choose. None: all that the viewer sees.
        after: the page goes on after this batch.
    """

    state: str | None = None
    tenant: str | None = None
    after: UUID | None = None

    @property
    def fields(self) -> dict[str, str | None]:
        """The filters as they are in the address, without the place."""
        return {name: getattr(self, name) for name in _NAMES}


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A batch in the list.

    Attributes:
        tenant: its owner's name; None: the viewer's own.
        filename: of its input; None: deleted.
    """

    id: str
    batch: Batch
    progress: BatchProgress
    tenant: str | None
    filename: str | None


@dataclass(frozen=True, slots=True)
class BatchesPage:
    """A page of the list.

    Attributes:
        next: the id after which the search goes on; None: there are no more.
        is_cut: the search stopped before it had filled the page.
    """

    rows: Sequence[BatchRow]
    next: UUID | None
    is_cut: bool

    @property
    def running(self) -> Mapping[UUID, BatchRow]:
        """The rows of batches that have not ended."""
        return {each.batch.id: each for each in self.rows if each.batch.state in ACTIVE}

    @property
    def tenant_names(self) -> Sequence[str]:
        """The owners on this page."""
        return sorted({each.tenant for each in self.rows if each.tenant is not None})


@router.get("/batches")
async def show_batches(request: Request, services: ServicesDep, viewer: ViewerDep) -> Response:
    """Show a page of batches, newest first."""
    query = parse_query(request.query_params)
    page = await read_for(viewer, services, partial(read_page, query=query, viewer=viewer))
    fields = query.fields
    after = None if page.next is None else ids.batch_id(page.next)
    place = None if query.after is None else ids.batch_id(query.after)
    return render(
        request,
        "batches/list.html",
        title="Batches",
        page=page,
        fields=fields,
        states=STATES,
        first_address=LIST + formats.query(fields),
        next_address=after and LIST + formats.query(fields | {"after": after}),
        live_address=f"{LIST}/live" + formats.query(fields | {"after": place}) if page.running else None,
        is_first=query.after is None,
    )


@router.get("/batches/live")
async def follow_batches(
    request: Request, services: ServicesDep, viewer: ViewerDep, watched: LiveDep
) -> Response:
    """Stream the changes of the page's batches that have not ended."""
    query = parse_query(request.query_params)
    with services.event_streams.opening(viewer.caller) as stream:
        page = await read_for(viewer, services, partial(read_page, query=query, viewer=viewer))
        rows = page.running
        if not rows:
            stream.release()
            return Response(status_code=204)  # ends the browser's tries
        shown: dict[UUID, BatchProgress] = {}

        def render_row(batch_id: UUID, progress: BatchProgress) -> str | None:
            if shown.get(batch_id) == progress:
                return None
            shown[batch_id] = progress
            return render_part(request, "batches/row_live.html", id=rows[batch_id].id, progress=progress)

        return EventResponse(stream, live.follow(watched.batches, list(rows), render_row))


def parse_query(given: Mapping[str, str]) -> BatchesQuery:
    """Read the filters of an address; empty ones are not chosen.

    Raises:
        InvalidRequestError: a value is none that the form offers.
    """
    chosen = formats.chosen(given, (*_NAMES, "after"))
    if "state" in chosen and chosen["state"] not in STATES:
        raise InvalidRequestError("The filter 'state' has none of its values.", param="state")
    after = parse_optional(
        chosen.pop("after", None), ids.parse_batch_id, param="after", message="There is no such page."
    )
    return BatchesQuery(after=after, **chosen)


def read_page(session: Session, *, query: BatchesQuery, viewer: Viewer) -> BatchesPage:
    """Read a page of the list, in a bounded number of rows.

    Raises:
        NotFoundError: there is no tenant of the name in the query, or the viewer may not choose one.
    """
    owner = tenant_of(viewer)
    if query.tenant is not None:
        owner = tenants.named(session, query.tenant).id
    found, following = batches.search(
        session, state=query.state, tenant_id=owner, after=query.after, limit=PAGE, window=WINDOW
    )
    is_cut = following is not None and not found.has_more
    progress = read_progress(session, [each.id for each in found.items])
    names = tenant_names(session, [each.tenant_id for each in found.items]) if viewer.is_operator else {}
    inputs = select(File.id, File.filename).where(File.id.in_([each.input_file_id for each in found.items]))
    filenames = dict(session.execute(inputs).tuples().all())
    rows = [
        BatchRow(
            id=ids.batch_id(each.id),
            batch=each,
            progress=progress[each.id],
            tenant=names.get(each.tenant_id),
            filename=filenames.get(each.input_file_id),
        )
        for each in found.items
    ]
    return BatchesPage(rows, following, is_cut)
