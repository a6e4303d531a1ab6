"""The first page: what runs and waits now."""

from functools import partial
from uuid import UUID

from fastapi import Request
from sqlalchemy import func, literal_column, select
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.console.error_pages import page_router
from api.console.page import render
from api.console.session import ViewerDep
from api.http.dependencies import ServicesDep
from jobs.models import Job

router = page_router()
_UNFINISHED = ("running", "queued", "preparing", "blocked")


@router.get("/")
async def show_overview(request: Request, services: ServicesDep, viewer: ViewerDep) -> Response:
    """Show how many jobs are in each unfinished state."""
    of_tenant = None if viewer.is_operator else viewer.caller.tenant_id
    counts = await services.transactions.run_across(partial(count_unfinished, tenant_id=of_tenant))
    return render(request, "overview.html", title="Overview", counts=counts)


def count_unfinished(session: Session, *, tenant_id: UUID | None) -> dict[str, int]:
    """Count the jobs of a tenant, or of all, in each unfinished state."""
    mine = [] if tenant_id is None else [Job.tenant_id == tenant_id]
    counts = {}
    for state in _UNFINISHED:
        # Literal, so that the planner uses the partial indexes.
        query = select(func.count()).select_from(Job).where(Job.state == literal_column(f"'{state}'"), *mine)
        counts[state] = session.scalar(query) or 0
    return counts
