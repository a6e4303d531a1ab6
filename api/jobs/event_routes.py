"""The events of a job over HTTP."""

from typing import Annotated, Final

from fastapi import APIRouter, Header, Query
from starlette.responses import Response

from api.http.dependencies import CallerDep, ServicesDep
from api.http.event_responses import EventResponse
from api.http.identifiers import JobIdDep
from api.http.openapi import event_responses
from api.jobs.events import JobEvents
from jobs.errors import NotFoundError

router = APIRouter(tags=["events"])

_MAX_DIGITS: Final = 18
LastEventId = Annotated[
    str | None,
    Header(alias="Last-Event-ID", description="Id of the last event received; text continues after it."),
]


@router.get(
    "/v1/jobs/{job_id}/events",
    summary="Follow a job",
    response_class=Response,
    responses=event_responses('id: 12\nevent: progress\ndata: {"completion_tokens":3,"max_tokens":64}\n\n'),
)
async def follow_job(
    job_id: JobIdDep,
    services: ServicesDep,
    caller: CallerDep,
    text: Annotated[bool, Query(description="Send new thinking and text too.")] = False,  # noqa: FBT002  # a query parameter
    last_event_id: LastEventId = None,
) -> EventResponse:
    """Stream server-sent events until the job ends.

    `job` is the job, sent first and whenever its state changes; `progress` reports its tokens so far; `text`
    is new text, each character once, and `reasoning` what a model thinks before it. Comments keep the
    connection open while nothing happens.
    """
    is_place = last_event_id is not None and last_event_id.isdecimal() and len(last_event_id) <= _MAX_DIGITS
    num_sent = int(last_event_id) if last_event_id and is_place else 0
    with services.event_streams.opening(caller) as stream:
        job = await services.poller.now(job_id, tenant_id=caller.tenant_id)
        if job is None:
            raise NotFoundError("There is no such job.")
        return EventResponse(stream, JobEvents(services, job, text=text, num_sent=num_sent).stream())
