"""The list of jobs, with filters in its address; its rows follow their jobs while the page is open."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final
from uuid import UUID

from fastapi import Request
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.console import formats, live
from api.console.error_pages import page_router
from api.console.job_filters import AGES, LANES, STATES, JobsQuery, parse_query
from api.console.live import LiveDep
from api.console.page import render, render_part
from api.console.reading import PAGE, WINDOW, read_for, tenant_names, tenant_of
from api.console.session import Viewer, ViewerDep
from api.http.dependencies import ServicesDep
from api.http.event_responses import EventResponse
from jobs import ids, queries, tenants
from jobs.database import database_now
from jobs.database.paging import Range
from jobs.models import Job
from jobs.queries import JobStatus
from jobs.states import ACTIVE
from jobs.views import PRIORITY_NAMES

router = page_router()

LIST: Final = "/console/jobs"


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


@dataclass(frozen=True, slots=True)
class JobsPage:
    """A page of the list.

    Attributes:
        next: the id after which the search goes on; None: there are no more.
        is_cut: the search stopped before it had filled the page.
    """

    rows: Mapping[UUID, JobRow]
    next: UUID | None
    is_cut: bool
    tenant_names: Sequence[str]


@router.get("/jobs")
async def show_jobs(request: Request, services: ServicesDep, viewer: ViewerDep) -> Response:
    """Show a page of jobs, newest first."""
    query = parse_query(request.query_params)
    page = await read_for(viewer, services, partial(read_page, query=query, viewer=viewer))
    fields = query.fields
    after = None if page.next is None else ids.job_id(page.next)
    place = None if query.after is None else ids.job_id(query.after)
    unfinished = [job_id for job_id, row in page.rows.items() if row.state in ACTIVE]
    return render(
        request,
        "jobs.html",
        title="Jobs",
        rows=list(page.rows.values()),
        fields=fields,
        page=page,
        states=STATES,
        lanes=LANES,
        ages={name: words for name, (words, _, _) in AGES.items()},
        first_address=LIST + formats.query(fields),
        next_address=after and LIST + formats.query(fields | {"after": after}),
        live_address=f"{LIST}/live" + formats.query(fields | {"after": place}) if unfinished else None,
        cancel_address=f"{LIST}/cancel" + formats.query(fields),
        may_cancel=viewer.may_change and query.is_filtered and not query.tenant,
        is_first=query.after is None,
    )


@router.get("/jobs/live")
async def follow_jobs(
    request: Request, services: ServicesDep, viewer: ViewerDep, watched: LiveDep
) -> Response:
    """Stream the changes of the page's unfinished jobs."""
    query = parse_query(request.query_params)
    with services.event_streams.opening(viewer.caller) as stream:
        page = await read_for(viewer, services, partial(read_page, query=query, viewer=viewer))
        followed = [job_id for job_id, row in page.rows.items() if row.state in ACTIVE]
        if not followed:
            stream.release()
            return Response(status_code=204)  # ends the browser's tries
        shown: dict[UUID, JobStatus] = {}

        def render_row(job_id: UUID, status: JobStatus) -> str | None:
            if shown.get(job_id) == status:
                return None
            shown[job_id] = status
            row = page.rows[job_id]
            return render_part(request, "job_row_live.html", row=row, status=status)

        return EventResponse(stream, live.follow(watched.jobs, followed, render_row))


def read_page(session: Session, *, query: JobsQuery, viewer: Viewer) -> JobsPage:
    """Read a page of the list, in a bounded number of rows.

    Raises:
        NotFoundError: there is no tenant of the name in the query, or the viewer may not choose one.
    """
    which = query.filter(now=database_now(session))
    owner = tenant_of(viewer)
    if query.tenant is not None:
        owner = tenants.named(session, query.tenant).id
    if owner is not None and which.has_index:
        found = queries.list_jobs(session, which, Range(owner, query.after, PAGE))
        following = found.items[-1].id if found.has_more else None
        is_cut = False
    else:
        found, following = queries.search_jobs(
            session, which, tenant_id=owner, after=query.after, limit=PAGE, window=WINDOW
        )
        is_cut = following is not None and not found.has_more
    names = tenant_names(session, [job.tenant_id for job in found.items]) if viewer.is_operator else {}
    rows = {job.id: row_of(job, tenant=names.get(job.tenant_id)) for job in found.items}
    return JobsPage(rows, following, is_cut, sorted(names.values()))


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
