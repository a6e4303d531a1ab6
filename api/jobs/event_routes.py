"""The events of a job over HTTP."""

from typing import Annotated

from fastapi import APIRouter, Header, Query
from starlette.responses import Response

from api.http.dependencies import CallerDep, ServicesDep
from api.http.event_responses import EventResponse
from api.http.identifiers import JobIdDep
from api.http.openapi import event_responses
from api.jobs.events import JobEvents, Place
from jobs.errors import NotFoundError

router = APIRouter(tags=["events"])

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
    is new text, each character once, `reasoning` what a model thinks before it, and `tool_call` a piece of a
    call as in OpenAI's chunks. Comments keep the connection open while nothing happens.
    """
    place = Place.read(last_event_id or "")
    with services.event_streams.opening(caller) as stream:
        job = await services.poller.now(job_id, tenant_id=caller.tenant_id)
        if job is None:
            raise NotFoundError("There is no such job.")
        return EventResponse(stream, JobEvents(services, job, text=text, place=place).stream())
