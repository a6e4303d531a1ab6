"""What happens, told as it happens: the events of one job, of one batch."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated, Final

from fastapi import APIRouter, Header, Query
from starlette.responses import Response, StreamingResponse

from api.dependencies import PartsDep, TenantDep
from api.events import JobEvents, batch_events
from api.identifiers import BatchIdDep, JobIdDep
from api.openapi import event_answers
from api.streams import EVENT_STREAM, HEADERS
from jobs import batches
from jobs.errors import NotFoundError

router = APIRouter(tags=["events"])

_MAX_DIGITS: Final = 18
LastEventId = Annotated[
    str | None,
    Header(alias="Last-Event-ID", description="the id of the last event seen; text goes on behind it"),
]


@router.get(
    "/v1/jobs/{job_id}/events",
    summary="Follow a job",
    response_class=Response,
    responses=event_answers('id: 12\nevent: progress\ndata: {"completion_tokens":3,"max_tokens":64}\n\n'),
)
async def follow_job(
    job_id: JobIdDep,
    parts: PartsDep,
    tenant_id: TenantDep,
    text: Annotated[bool, Query(description="send new text too")] = False,  # noqa: FBT002  # a query parameter
    last_event_id: LastEventId = None,
) -> StreamingResponse:
    """Server-sent events until the job has ended.

    `job` is the job, at first and whenever its state has changed; `progress` tells its tokens so far; `text`
    is new text, each character once. Comments keep the connection open while nothing happens.
    """
    job = await parts.watch.now(job_id, tenant_id=tenant_id)
    if job is None:
        raise NotFoundError("there is no such job")
    is_place = last_event_id is not None and last_event_id.isdecimal() and len(last_event_id) <= _MAX_DIGITS
    num_sent = int(last_event_id) if last_event_id and is_place else 0
    return _stream(JobEvents(parts, job, text=text, num_sent=num_sent).stream())


@router.get(
    "/v1/batches/{batch_id}/events",
    summary="Follow a batch",
    response_class=Response,
    responses=event_answers('id: 0\nevent: batch\ndata: {"id":"batch_…","status":"in_progress"}\n\n'),
)
async def follow_batch(batch_id: BatchIdDep, parts: PartsDep, tenant_id: TenantDep) -> StreamingResponse:
    """Server-sent events until the batch has ended: the batch, whenever its counts have changed."""
    read = partial(batches.get, batch_id=batch_id, tenant_id=tenant_id)
    batch = await parts.transactions.run(read)
    again = partial(parts.transactions.run, read, tenant_ids=[tenant_id])
    return _stream(batch_events(parts, batch, again))


def _stream(events: AsyncIterator[bytes]) -> StreamingResponse:
    return StreamingResponse(events, media_type=EVENT_STREAM, headers=HEADERS)
