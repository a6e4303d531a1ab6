"""What is done with one summary: download its result, cancel it, delete it."""

from functools import partial
from typing import Annotated, Final
from urllib.parse import quote
from uuid import UUID

from fastapi import Query, Request
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.console.error_pages import page_router
from api.console.forms import ChangeDep
from api.console.page import redirect, render
from api.console.reading import owner_of, read_for
from api.console.session import ViewerDep
from api.console.summaries.listing import LIST
from api.http.dependencies import ServicesDep
from api.http.identifiers import SummaryIdDep
from api.summaries import results, verbs
from api.summaries.results import EndedSummary, Format
from jobs import ids, summaries
from jobs.models import Summary

router = page_router()

# Of a document, as `formats.as_markdown` fills it in.
_STRETCH: Final = "/console/documents/{document_id}?show=text&start={start}"


@router.get("/summaries/{summary_id}/result")
async def download_result(
    request: Request,
    summary_id: SummaryIdDep,
    services: ServicesDep,
    viewer: ViewerDep,
    form: Annotated[Format, Query(alias="format")] = "json",
) -> Response:
    """Send the result of an ended summary as a file."""

    def read(session: Session) -> EndedSummary:
        owner = owner_of(session, viewer, summary_id, of=(Summary.id, Summary.tenant_id))
        return results.read(session, summary_id=summary_id, tenant_id=owner, form=form)

    # The file leaves this server, and its reader has a session rather than a key.
    origin = f"{request.url.scheme}://{quote(request.url.netloc, safe=':[]')}"
    run = partial(read_for, viewer, services)
    found = await results.with_quotes(services, run, await run(read), form=form)
    response = results.response(found, form, link=origin + _STRETCH)
    name = f"{ids.summary_id(summary_id)}.{form}"
    response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return response


@router.post("/summaries/{summary_id}/cancel")
async def cancel_summary(
    summary_id: SummaryIdDep, services: ServicesDep, viewer: ViewerDep, _form: ChangeDep
) -> Response:
    """Cancel the summary and its jobs; running ones stop within a second."""
    await verbs.cancel(services, summary_id, tenant_id=viewer.caller.tenant_id)
    return redirect(_address(summary_id), done="The summary is being cancelled; what has ended is kept.")


@router.get("/summaries/{summary_id}/delete")
async def confirm_delete(
    request: Request, summary_id: SummaryIdDep, services: ServicesDep, viewer: ViewerDep
) -> Response:
    """Ask before the summary is deleted."""
    await services.transactions.run(
        partial(summaries.get, summary_id=summary_id, tenant_id=viewer.caller.tenant_id)
    )
    return render(
        request,
        "confirm.html",
        title="Delete the summary",
        question="The summary, its parts and their jobs are deleted. Its documents stay.",
        address=_address(summary_id),
        verb="delete",
    )


@router.post("/summaries/{summary_id}/delete")
async def delete_summary(
    summary_id: SummaryIdDep, services: ServicesDep, viewer: ViewerDep, _form: ChangeDep
) -> Response:
    """Delete a summary that has ended, with its jobs."""
    tenant_id = viewer.caller.tenant_id
    await services.transact(summaries.remove, summary_id=summary_id, tenant_id=tenant_id)
    return redirect(LIST, done="The summary is deleted.")


def _address(summary_id: UUID) -> str:
    return f"{LIST}/{ids.summary_id(summary_id)}"
