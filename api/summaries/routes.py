"""Summaries over HTTP: create, estimate, get, list, follow, read the result, cancel, delete."""

from functools import partial
from typing import Annotated, Final
from uuid import UUID

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.http import deliveries
from api.http.body import parse, read_body
from api.http.deliveries import HandedOver
from api.http.departures import unless_gone
from api.http.dependencies import CallerDep, ServicesDep, TenantDep, services_of
from api.http.event_responses import EventResponse
from api.http.fields import wait_seconds
from api.http.idempotency import IdempotencyDep
from api.http.identifiers import SummaryIdDep
from api.http.openapi import event_responses, json_body, responses
from api.http.sse import object_events
from api.summaries import results, verbs
from api.summaries.lists import MadeList, accepted
from api.summaries.quotes import find_quotes
from api.summaries.replies import (
    DeletedSummaryReply,
    SummaryEstimateReply,
    SummaryListReply,
    SummaryReply,
    SummaryResultReply,
    SummaryWithChunksReply,
)
from api.summaries.requests import SummaryEstimateRequest, SummaryListQuery, SummaryRequest
from jobs import ids, summaries
from jobs.summaries import queries, tree
from jobs.summaries.queries import ChunkRange
from jobs.summaries.views import SummaryObject, SummaryWithChunks

router = APIRouter(tags=["summaries"])


MAX_LISTED_CHUNKS: Final = 1000  # a few megabytes; a summary may have 50,000
# 1000 ids, instructions, a template, however they are escaped, and metadata.
_MAX_BYTES: Final = 512 * 1024

Chunks = Annotated[bool, Query(description="Include the chunks.")]
Quotes = Annotated[
    bool,
    Query(
        alias="quotes", description="Look up in the documents what the summary has in double quotation marks."
    ),
]
ChunksStart = Annotated[
    int, Query(ge=0, le=tree.MAX_CHUNKS, description="First chunk to list, counted from 0.")
]
ChunksLimit = Annotated[
    int, Query(ge=1, le=MAX_LISTED_CHUNKS, description="Maximum number of chunks to list.")
]


@router.post(
    "/v1/summaries",
    status_code=202,
    summary="Summarize documents",
    responses=responses(
        202, SummaryListReply, "Accepted, in the order of the documents", 400, 404, 409, 413, 503
    ),
    openapi_extra=json_body(SummaryRequest),
)
async def create_summaries(
    request: Request, services: ServicesDep, tenant_id: TenantDep, idempotency: IdempotencyDep
) -> JSONResponse:
    """Summarize each document, or all in one with `combine`.

    The documents need not be ready yet.
    """
    asked = parse(SummaryRequest, await read_body(request, max_bytes=_MAX_BYTES))
    data, replayed = await verbs.submit(services, asked, tenant_id=tenant_id, idempotency=idempotency)
    return accepted("/v1/summaries", data, replayed=replayed)


@router.post(
    "/v1/summaries/estimate",
    summary="Estimate summaries",
    responses=responses(200, SummaryEstimateReply, "The estimate", 400, 404, 409, 413, 503),
    openapi_extra=json_body(SummaryEstimateRequest),
)
async def estimate(request: Request, services: ServicesDep, tenant_id: TenantDep) -> JSONResponse:
    """Estimate chunks, levels, jobs, tokens and time, without submitting anything."""
    asked = parse(SummaryEstimateRequest, await read_body(request, max_bytes=_MAX_BYTES))
    return JSONResponse(await verbs.estimate(services, asked, tenant_id=tenant_id))


@router.get(
    "/v1/summaries",
    summary="List summaries",
    responses=responses(200, SummaryListReply, "One page", 400, 503),
)
async def list_summaries(
    services: ServicesDep, tenant_id: TenantDep, query: Annotated[SummaryListQuery, Query()]
) -> JSONResponse:
    """List your summaries, newest first. Pages stay stable while summaries are added."""
    found = MadeList(ids.SUMMARY, summaries.list_summaries, queries.describe_each)
    return await found.answer(services, query, tenant_id=tenant_id)


@router.get(
    "/v1/summaries/{summary_id}",
    summary="Get a summary",
    responses=responses(200, SummaryWithChunksReply, "The summary, with its chunks", 400, 404, 503),
)
async def get_summary(
    request: Request,
    summary_id: SummaryIdDep,
    tenant_id: TenantDep,
    wait: Annotated[float, wait_seconds("summary")] = 0,
    chunks: Chunks = True,  # noqa: FBT002  # a query parameter
    chunks_start: ChunksStart = 0,
    chunks_limit: ChunksLimit = MAX_LISTED_CHUNKS,
    with_quotes: Quotes = False,  # noqa: FBT002  # a query parameter
) -> JSONResponse:
    """Get the summary now or, with `wait`, once it has ended or the time is up."""
    services = services_of(request)
    wanted = ChunkRange(chunks_start, chunks_limit) if chunks else None
    if wait:
        await services.transact(summaries.get, summary_id=summary_id, tenant_id=tenant_id)
        await unless_gone(request, verbs.until_ended(services, summary_id, seconds=wait))
    found = await services.transact(_read, summary_id=summary_id, tenant_id=tenant_id, chunks=wanted)
    if not with_quotes:
        return JSONResponse(found)
    run = services.transactions.run
    quotes = await find_quotes(services, run, summary_id=summary_id, summary=found["summary"])
    return JSONResponse({**found, "quotes": quotes})


@router.get(
    "/v1/summaries/{summary_id}/result",
    summary="Get a summary's result",
    responses=responses(
        200,
        SummaryResultReply,
        "The summary with its sources; partial unless completed",
        400,
        404,
        409,
        503,
        raw={"text/markdown": "# report.pdf\n\nThe report finds …\n", "text/csv": "document_id,index,…\r\n"},
    ),
)
async def get_result(
    request: Request,
    summary_id: SummaryIdDep,
    services: ServicesDep,
    tenant_id: TenantDep,
    form: Annotated[results.Format, Query(alias="format")] = "json",
) -> Response:
    """Get an ended summary's result: JSON, Markdown with links to sources, or CSV."""
    read = partial(results.read, summary_id=summary_id, tenant_id=tenant_id, form=form)
    found = await services.transactions.run(read)
    run = services.transactions.run
    if form == "json":  # the others leave out a part
        deliveries.note(request, HandedOver(summary_id=summary_id))
    return results.response(await results.with_quotes(services, run, found, form=form), form)


@router.get(
    "/v1/summaries/{summary_id}/events",
    summary="Follow a summary",
    response_class=Response,
    responses=event_responses('id: 0\nevent: summary\ndata: {"id":"sum_…","state":"running"}\n\n'),
)
async def follow_summary(summary_id: SummaryIdDep, services: ServicesDep, caller: CallerDep) -> EventResponse:
    """Stream server-sent events until the summary ends.

    Each event is the summary, sent first and whenever its counts change.
    """
    read = partial(_read, summary_id=summary_id, tenant_id=caller.tenant_id)
    again = partial(services.transactions.run, read, tenant_ids=[caller.tenant_id])
    with services.event_streams.opening(caller) as stream:
        await again()
        changes = services.summary_changes.changes(summary_id)
        return EventResponse(stream, object_events("summary", changes, again))


@router.post(
    "/v1/summaries/{summary_id}/cancel",
    summary="Cancel a summary",
    responses=responses(200, SummaryReply, "The summary", 404, 503),
)
async def cancel_summary(
    summary_id: SummaryIdDep, services: ServicesDep, tenant_id: TenantDep
) -> JSONResponse:
    """Cancel the summary and its jobs; running ones stop within a second.

    A summary that has ended stays as it is.
    """
    await verbs.cancel(services, summary_id, tenant_id=tenant_id)
    return JSONResponse(await services.transact(_read, summary_id=summary_id, tenant_id=tenant_id))


@router.delete(
    "/v1/summaries/{summary_id}",
    summary="Delete a summary",
    responses=responses(200, DeletedSummaryReply, "The summary was deleted", 404, 409, 503),
)
async def delete_summary(
    summary_id: SummaryIdDep, services: ServicesDep, tenant_id: TenantDep
) -> JSONResponse:
    """Delete a summary that has ended, with its jobs; its documents stay."""
    await services.transact(summaries.remove, summary_id=summary_id, tenant_id=tenant_id)
    return JSONResponse({"id": ids.summary_id(summary_id), "object": "summary", "deleted": True})


def _read(
    session: Session, *, summary_id: UUID, tenant_id: UUID, chunks: ChunkRange | None = None
) -> SummaryObject | SummaryWithChunks:
    summary = summaries.get(session, summary_id, tenant_id=tenant_id)
    if chunks is not None:
        return queries.describe_with_some_chunks(session, summary, chunks)
    return queries.describe(session, summary)
