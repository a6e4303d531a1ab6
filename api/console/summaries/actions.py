"""What is done with one summary: download its result, cancel it, delete it."""

from functools import partial
from typing import Annotated, Final
from urllib.parse import quote

from fastapi import Query, Request
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.console.reading import owner_of, read_for
from api.console.session import ViewerDep
from api.console.subjects.actions import SubjectActions, action_routes
from api.console.subjects.kinds import SUBJECTS
from api.http.dependencies import ServicesDep
from api.http.identifiers import SummaryIdDep
from api.summaries import results, verbs
from api.summaries.results import EndedSummary, Format
from jobs import ids
from jobs.models import Summary
from jobs.states.summary import Purpose

router = action_routes(
    SubjectActions(
        SUBJECTS[Purpose.SUMMARY],
        verbs.cancel,
        name="the summary",
        cancelled="The summary is being cancelled; what has ended is kept.",
        deletion="The summary, its parts and their jobs are deleted. Its documents stay.",
        deleted="The summary is deleted.",
    )
)

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
