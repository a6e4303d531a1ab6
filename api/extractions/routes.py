"""Extractions over HTTP: create, estimate, get, list, follow, cancel, delete."""

from functools import partial
from typing import Annotated, Final
from uuid import UUID

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.extractions import verbs
from api.extractions.replies import (
    DeletedExtractionReply,
    ExtractionEstimateReply,
    ExtractionListReply,
    ExtractionReply,
    ExtractionWithValuesReply,
)
from api.extractions.requests import (
    ExtractionEstimateRequest,
    ExtractionListQuery,
    ExtractionRequest,
)
from api.http.body import parse, read_body
from api.http.departures import unless_gone
from api.http.dependencies import CallerDep, ServicesDep, TenantDep
from api.http.event_responses import EventResponse
from api.http.fields import wait_seconds
from api.http.idempotency import IdempotencyDep
from api.http.identifiers import ExtractionIdDep
from api.http.openapi import event_responses, json_body, responses
from api.http.sse import object_events
from api.summaries.lists import MadeList, accepted
from api.summaries.verbs import until_ended
from jobs import extractions, ids
from jobs.extractions import queries
from jobs.extractions.views import ExtractionObject, ExtractionWithValues

router = APIRouter(tags=["extractions"])

# 1000 ids, 20,000 characters of a schema, a template, however they are escaped, and metadata.
_MAX_BYTES: Final = 512 * 1024

Values = Annotated[bool, Query(alias="values", description="Include what was found.")]


@router.post(
    "/v1/extractions",
    status_code=202,
    summary="Extract fields from documents",
    responses=responses(
        202, ExtractionListReply, "Accepted, in the order of the documents", 400, 404, 409, 413, 503
    ),
    openapi_extra=json_body(ExtractionRequest),
)
async def create_extractions(
    request: Request, services: ServicesDep, tenant_id: TenantDep, idempotency: IdempotencyDep
) -> JSONResponse:
    """Extract the fields from each document.

    The documents need not be ready yet.
    """
    asked = parse(ExtractionRequest, await read_body(request, max_bytes=_MAX_BYTES))
    data, replayed = await verbs.submit(services, asked, tenant_id=tenant_id, idempotency=idempotency)
    return accepted("/v1/extractions", data, replayed=replayed)


@router.post(
    "/v1/extractions/estimate",
    summary="Estimate extractions",
    responses=responses(200, ExtractionEstimateReply, "The estimate", 400, 404, 409, 413, 503),
    openapi_extra=json_body(ExtractionEstimateRequest),
)
async def estimate(request: Request, services: ServicesDep, tenant_id: TenantDep) -> JSONResponse:
    """Estimate parts, jobs, tokens and time, without submitting anything."""
    asked = parse(ExtractionEstimateRequest, await read_body(request, max_bytes=_MAX_BYTES))
    return JSONResponse(await verbs.estimate(services, asked, tenant_id=tenant_id))


@router.get(
    "/v1/extractions",
    summary="List extractions",
    responses=responses(200, ExtractionListReply, "One page", 400, 503),
)
async def list_extractions(
    services: ServicesDep, tenant_id: TenantDep, query: Annotated[ExtractionListQuery, Query()]
) -> JSONResponse:
    """List your extractions, newest first. Pages stay stable while others are added."""
    describe = queries.describe_each_whole if query.values else queries.describe
    found = MadeList(ids.EXTRACTION, extractions.list_extractions, describe)
    return await found.answer(services, query, tenant_id=tenant_id)


@router.get(
    "/v1/extractions/{extraction_id}",
    summary="Get an extraction",
    responses=responses(200, ExtractionWithValuesReply, "The document's extraction", 400, 404, 503),
)
async def get_extraction(
    request: Request,
    extraction_id: ExtractionIdDep,
    services: ServicesDep,
    tenant_id: TenantDep,
    wait: Annotated[float, wait_seconds("extraction")] = 0,
    with_values: Values = True,  # noqa: FBT002  # a query parameter
) -> JSONResponse:
    """Get the extraction now or, with `wait`, once it has ended or the time is up."""
    if wait:
        await services.transact(extractions.get, extraction_id=extraction_id, tenant_id=tenant_id)
        await unless_gone(request, until_ended(services, extraction_id, seconds=wait))
    return JSONResponse(
        await services.transact(
            _read, extraction_id=extraction_id, tenant_id=tenant_id, with_values=with_values
        )
    )


@router.get(
    "/v1/extractions/{extraction_id}/events",
    summary="Follow an extraction",
    response_class=Response,
    responses=event_responses('id: 0\nevent: extraction\ndata: {"id":"ext_…","state":"running"}\n\n'),
)
async def follow_extraction(
    extraction_id: ExtractionIdDep, services: ServicesDep, caller: CallerDep
) -> EventResponse:
    """Stream server-sent events until the extraction has ended.

    Each event is the object without its values, sent first and whenever its counts change.
    """
    read = partial(_read, extraction_id=extraction_id, tenant_id=caller.tenant_id)
    again = partial(services.transactions.run, read, tenant_ids=[caller.tenant_id])
    with services.event_streams.opening(caller) as stream:
        await again()
        changes = services.summary_changes.changes(extraction_id)
        return EventResponse(stream, object_events("extraction", changes, again))


@router.post(
    "/v1/extractions/{extraction_id}/cancel",
    summary="Cancel an extraction",
    responses=responses(200, ExtractionReply, "The extraction", 404, 503),
)
async def cancel_extraction(
    extraction_id: ExtractionIdDep, services: ServicesDep, tenant_id: TenantDep
) -> JSONResponse:
    """Cancel the extraction and its jobs; running ones stop within a second.

    An extraction that has ended stays as it is.
    """
    await verbs.cancel(services, extraction_id, tenant_id=tenant_id)
    return JSONResponse(await services.transact(_read, extraction_id=extraction_id, tenant_id=tenant_id))


@router.delete(
    "/v1/extractions/{extraction_id}",
    summary="Delete an extraction",
    responses=responses(200, DeletedExtractionReply, "The extraction was deleted", 404, 409, 503),
)
async def delete_extraction(
    extraction_id: ExtractionIdDep, services: ServicesDep, tenant_id: TenantDep
) -> JSONResponse:
    """Delete an extraction that has ended, with its jobs; the document stays."""
    await services.transact(extractions.remove, extraction_id=extraction_id, tenant_id=tenant_id)
    return JSONResponse({"id": ids.extraction_id(extraction_id), "object": "extraction", "deleted": True})


def _read(
    session: Session, *, extraction_id: UUID, tenant_id: UUID, with_values: bool = False
) -> ExtractionObject | ExtractionWithValues:
    found = extractions.get(session, extraction_id, tenant_id=tenant_id)
    if with_values:
        return queries.describe_whole(session, found)
    return queries.describe(session, [found])[0]
