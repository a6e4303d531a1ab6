"""Cancelling: one job, or all that match the list's filters, after their number was shown."""

import asyncio
from functools import partial
from typing import Final

from fastapi import Request
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.console import formats
from api.console.error_pages import page_router
from api.console.forms import ChangeDep, check_may_change
from api.console.job_filters import JOBS, LIST, filter_of
from api.console.lists import ListQuery
from api.console.page import redirect, render
from api.console.session import Viewer, ViewerDep
from api.http.dependencies import ServicesDep
from api.http.identifiers import JobIdDep
from api.jobs.bulk_routes import cancel_some_jobs
from jobs import ids, lifecycle
from jobs.database import database_now
from jobs.errors import ForbiddenError, InvalidRequestError
from jobs.queries import JobFilter
from jobs.states import TERMINAL

router = page_router()

_COUNTED: Final = 10_000
# A form is answered after so long, even if some jobs are left: the page then offers to go on.
_SECONDS: Final = 8.0


@router.get("/jobs/cancel")
async def confirm_cancel(request: Request, services: ServicesDep, viewer: ViewerDep) -> Response:
    """Show how many jobs match, before anything is cancelled."""
    query = _checked(JOBS.parse(request.query_params), viewer)

    def count(session: Session) -> tuple[int, bool, str]:
        now = database_now(session)
        which = filter_of(query, now=now).conditions()
        tenant_id = viewer.caller.tenant_id
        number, is_all = lifecycle.count_cancellable(session, which, tenant_id=tenant_id, at_most=_COUNTED)
        return number, is_all, now.isoformat()

    number, is_all, counted_at = await services.transactions.run(count)
    return render(
        request,
        "jobs_cancel.html",
        title="Cancel jobs",
        number=number,
        is_all=is_all,
        most=_COUNTED,
        counted_at=counted_at,
        fields=query.chosen,
        list_address=LIST + formats.query(query.fields),
        address=f"{LIST}/cancel",
    )


@router.post("/jobs/cancel")
async def cancel_jobs(services: ServicesDep, viewer: ViewerDep, form: ChangeDep) -> Response:
    """Cancel the jobs that match and existed when they were counted, in steps, as far as there is time."""
    query = _checked(JOBS.parse(form), viewer)
    counted_at = formats.parse_moment(form.get("counted_at", ""))
    which = filter_of(query, now=counted_at)
    until = min(counted_at, which.until) if which.until else counted_at
    bounded = JobFilter(
        state=which.state, lane=which.lane, batch_id=which.batch_id, since=which.since, until=until
    )
    cancel_some = partial(
        cancel_some_jobs, conditions=bounded.conditions(), tenant_id=viewer.caller.tenant_id
    )
    num_cancelled, num_more = 0, 1
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + _SECONDS
    while num_more and loop.time() < ends_at:
        num_more = await services.transactions.run(cancel_some)
        num_cancelled += num_more
    if num_more:
        address = f"{LIST}/cancel" + formats.query(query.fields)
        return redirect(address, done=f"{num_cancelled:,} jobs are cancelled so far; there are more.")
    return redirect(LIST + formats.query(query.fields), done=f"{num_cancelled:,} jobs are cancelled.")


@router.post("/jobs/{job_id}/cancel")
async def cancel_job(
    job_id: JobIdDep, services: ServicesDep, viewer: ViewerDep, _form: ChangeDep
) -> Response:
    """Cancel one job of the viewer's tenant; a running one stops within a second."""
    cancel = partial(lifecycle.cancel, job_id=job_id, tenant_id=viewer.caller.tenant_id)
    job = await services.transactions.run(cancel)
    services.doorbell.ring_for([job])
    words = f"The job is {job.state}." if job.state in TERMINAL else "The job is being stopped."
    return redirect(f"{LIST}/{ids.job_id(job_id)}", done=words)


def _checked(query: ListQuery, viewer: Viewer) -> ListQuery:
    """Return the query if all that it matches may be cancelled by its viewer.

    Raises:
        ForbiddenError: the key may only read, or the query names a tenant.
        InvalidRequestError: the query has no filter.
    """
    check_may_change(viewer)
    if "tenant" in query.chosen:
        raise ForbiddenError("Only a tenant's own keys cancel its jobs.")
    if not query.chosen:
        raise InvalidRequestError("Choose at least one filter; all jobs at once are not cancelled here.")
    return query
