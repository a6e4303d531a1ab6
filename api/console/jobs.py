"""The list of jobs, with filters in its address; its rows follow their jobs while the page is open."""

from dataclasses import dataclass
from datetime import datetime
from functools import partial
from uuid import UUID

from fastapi import Request
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.console import formats, live
from api.console.error_pages import page_router
from api.console.job_filters import AGES, JOBS, LANES, LIST, STATES, filter_of
from api.console.lists import ListPage, ListQuery
from api.console.live import LiveDep
from api.console.page import render, render_part
from api.console.reading import read_for, tenant_names
from api.console.session import Viewer, ViewerDep
from api.http.dependencies import ServicesDep
from jobs import ids, queries
from jobs.database import database_now
from jobs.database.paging import FoundRows, Range
from jobs.models import Job
from jobs.queries import JobStatus
from jobs.states import ACTIVE
from jobs.views import PRIORITY_NAMES

router = page_router()


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job in the list.

    Attributes:
        tenant: its owner's name; None: the viewer's own.
    """

    id: str
    tenant: str | None
    state: str
    lane: str
    priority: str
    task: str
    custom_id: str | None
    prompt_tokens: int | None
    completion_tokens: int
    max_tokens: int
    error_code: str | None
    created_at: datetime
    is_stopping: bool


@router.get("/jobs")
async def show_jobs(request: Request, services: ServicesDep, viewer: ViewerDep) -> Response:
    """Show a page of jobs, newest first."""
    query = JOBS.parse(request.query_params)
    page = await read_for(viewer, services, partial(read_page, query=query, viewer=viewer))
    return render(
        request,
        "jobs.html",
        title="Jobs",
        rows=list(page.rows.values()),
        fields=query.fields,
        page=page,
        states=STATES,
        lanes=LANES,
        ages={name: words for name, (words, _, _) in AGES.items()},
        links=query.links(next_after=page.next, is_live=bool(_unfinished(page))),
        cancel_address=f"{LIST}/cancel" + formats.query(query.fields),
        may_cancel=viewer.may_change and bool(query.chosen) and "tenant" not in query.chosen,
    )


@router.get("/jobs/live")
async def follow_jobs(
    request: Request, services: ServicesDep, viewer: ViewerDep, watched: LiveDep
) -> Response:
    """Stream the changes of the page's unfinished jobs."""
    query = JOBS.parse(request.query_params)
    with services.event_streams.opening(viewer.caller, session=viewer.token) as stream:
        page = await read_for(viewer, services, partial(read_page, query=query, viewer=viewer))

        def render_row(job_id: UUID, status: JobStatus) -> str:
            return render_part(request, "job_row_live.html", row=page.rows[job_id], status=status)

        return live.respond(stream, watched.jobs, _unfinished(page), render_row)


def read_page(session: Session, *, query: ListQuery, viewer: Viewer) -> ListPage[JobRow]:
    """Read a page of the list, in a bounded number of rows; raise as `ListQuery.range_for` does."""
    which, wanted = filter_of(query, now=database_now(session)), query.range_for(session, viewer)
    if wanted.tenant_id is not None and which.has_index:
        listed = queries.list_jobs(session, which, Range(wanted.tenant_id, wanted.after, wanted.limit))
        found = FoundRows(listed.items, listed.items[-1].id if listed.has_more else None)
    else:
        found = queries.search_jobs(session, which, wanted)
    names = tenant_names(session, viewer, [job.tenant_id for job in found.items])
    rows = {job.id: row_of(job, tenant=names.get(job.tenant_id)) for job in found.items}
    return ListPage(rows, names, found.next, found.is_cut)


def _unfinished(page: ListPage[JobRow]) -> list[UUID]:
    return [job_id for job_id, row in page.rows.items() if row.state in ACTIVE]


def row_of(job: Job, *, tenant: str | None) -> JobRow:
    """Make the row that shows this job."""
    return JobRow(
        id=ids.job_id(job.id),
        tenant=tenant,
        state=job.state,
        lane=job.lane,
        priority=PRIORITY_NAMES[job.rank],
        task=job.task,
        custom_id=job.custom_id,
        prompt_tokens=job.prompt_tokens,
        completion_tokens=job.completion_tokens,
        max_tokens=job.max_tokens,
        error_code=str(job.error["code"]) if job.error else None,
        created_at=job.created_at,
        is_stopping=job.stop_reason == "cancel" and job.state in ACTIVE,
    )
