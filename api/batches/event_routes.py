"""Events of a batch over HTTP."""

from functools import partial

from fastapi import APIRouter
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.http.dependencies import CallerDep, ServicesDep
from api.http.event_responses import EventResponse
from api.http.identifiers import BatchIdDep
from api.http.openapi import event_responses
from api.http.sse import object_events
from jobs import batches
from jobs.batches.views import BatchObject, batch_object

router = APIRouter(tags=["events"])


@router.get(
    "/v1/batches/{batch_id}/events",
    summary="Follow a batch",
    response_class=Response,
    responses=event_responses('id: 0\nevent: batch\ndata: {"id":"batch_…","status":"in_progress"}\n\n'),
)
async def follow_batch(batch_id: BatchIdDep, services: ServicesDep, caller: CallerDep) -> EventResponse:
    """Stream server-sent events until the batch ends.

    Each event is the batch, sent first and whenever its counts change.
    """

    def read(session: Session) -> BatchObject:
        return batch_object(batches.get(session, batch_id, tenant_id=caller.tenant_id))

    again = partial(services.transactions.run, read, tenant_ids=[caller.tenant_id])
    with services.event_streams.opening(caller) as stream:
        await again()
        changes = services.batch_changes.changes(batch_id)
        return EventResponse(stream, object_events("batch", changes, again))
