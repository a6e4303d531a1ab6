"""The list of batches, with filters in its address; its rows grow while the page is open."""

from dataclasses import dataclass
from functools import partial
from typing import Final
from uuid import UUID

from fastapi import Request
from sqlalchemy import select
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
from jobs import batches, ids
from jobs.batches.progress import BatchProgress, read_progress
from jobs.models.batch import Batch
from jobs.models.file import File
from jobs.states.batch import ACTIVE, BatchState

router = page_router()

LIST: Final = "/console/batches"
STATES: Final = tuple(BatchState)
_BATCHES: Final = RowList(LIST, ids.BATCH, filters=("state", "tenant"), values={"state": STATES})


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


@router.get("/batches")
async def show_batches(request: Request, services: ServicesDep, viewer: ViewerDep) -> Response:
    """Show a page of batches, newest first."""
    query = _BATCHES.parse(request.query_params)
    page = await read_for(viewer, services, partial(read_page, query=query, viewer=viewer))
    return render(
        request,
        "batches/list.html",
        title="Batches",
        page=page,
        fields=query.fields,
        states=STATES,
        links=query.links(next_after=page.next, is_live=bool(_running(page))),
    )


@router.get("/batches/live")
async def follow_batches(
    request: Request, services: ServicesDep, viewer: ViewerDep, watched: LiveDep
) -> Response:
    """Stream the changes of the page's batches that have not ended."""
    query = _BATCHES.parse(request.query_params)
    with services.event_streams.opening(viewer.caller, session=viewer.token) as stream:
        page = await read_for(viewer, services, partial(read_page, query=query, viewer=viewer))

        def render_row(batch_id: UUID, progress: BatchProgress) -> str:
            name = ids.batch_id(batch_id)
            return render_part(request, "batches/row_live.html", id=name, progress=progress)

        return live.respond(stream, watched.batches, _running(page), render_row)


def read_page(session: Session, *, query: ListQuery, viewer: Viewer) -> ListPage[BatchRow]:
    """Read a page of the list, in a bounded number of rows; raise as `ListQuery.range_for` does."""
    wanted = query.range_for(session, viewer)
    found = batches.search(session, wanted, state=query.chosen.get("state"))
    progress = read_progress(session, [each.id for each in found.items])
    names = tenant_names(session, viewer, [each.tenant_id for each in found.items])
    inputs = select(File.id, File.filename).where(File.id.in_([each.input_file_id for each in found.items]))
    filenames = dict(session.execute(inputs).tuples().all())
    rows = {
        each.id: BatchRow(
            id=ids.batch_id(each.id),
            batch=each,
            progress=progress[each.id],
            tenant=names.get(each.tenant_id),
            filename=filenames.get(each.input_file_id),
        )
        for each in found.items
    }
    return ListPage(rows, names, found.next, found.is_cut)


def _running(page: ListPage[BatchRow]) -> list[UUID]:
    """Return the batches that have not ended."""
    return [batch_id for batch_id, row in page.rows.items() if row.batch.state in ACTIVE]
