"""Summaries over HTTP: create, estimate, get, list, follow, read the result, cancel, delete."""

import asyncio
import json
from contextlib import aclosing, suppress
from functools import partial
from hashlib import sha256
from typing import Annotated, Any, Final, Literal
from uuid import UUID

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.http.body import parse, read_body
from api.http.callbacks import check_callback
from api.http.dependencies import CallerDep, ServicesDep, TenantDep
from api.http.event_responses import EventResponse
from api.http.fields import wait_seconds
from api.http.idempotency import IdempotencyDep
from api.http.identifiers import SummaryIdDep, parse_documents, parse_optional, parse_range
from api.http.openapi import event_responses, json_body, responses
from api.http.replies import page
from api.http.sse import object_events
from api.runtime.services import Services
from api.summaries.estimates import check_options, estimate_summaries, prompt_options
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
from jobs.doorbell import SERVICE
from jobs.engines import registry
from jobs.errors import InvalidRequestError, JobNotFinishedError, ModelNotFoundError
from jobs.models import JsonObject, Summary
from jobs.states.summary import TERMINAL, OnGap, Style
from jobs.summaries import SummaryFilter, SummarySpec, formats, queries, tree
from jobs.summaries.queries import ChunkRange
from jobs.summaries.views import SummaryObject, SummaryWithChunks
from jobs.tenants.idempotency import RequestKind
from jobs.validation import WINDOWS
from jobs.views import PRIORITIES

router = APIRouter(tags=["summaries"])


MAX_LISTED_CHUNKS: Final = 1000  # a few megabytes; a summary may have 50,000
# 1000 ids, instructions and metadata.
_MAX_BYTES: Final = 256 * 1024
_MEDIA_TYPES: Final = {"md": "text/markdown", "csv": "text/csv"}

Chunks = Annotated[bool, Query(description="Include the chunks.")]
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
    if asked.urls:
        message = "This server does not fetch URLs; upload the documents instead."
        raise InvalidRequestError(message, param="urls")
    model = await _model(services, asked.model)
    spec = _specification(asked, services, model)
    await check_options(services, prompt_options(asked))
    await services.admit_callback(spec.webhook_url, tenant_id=tenant_id)
    # Left out if empty: releases before this field hashed the same request without it.
    unset = None if asked.chat_template_kwargs else {"chat_template_kwargs"}
    fields = asked.model_dump(mode="json", exclude=unset)
    digest = sha256(json.dumps(fields, sort_keys=True).encode()).digest()

    def create(session: Session) -> tuple[list[SummaryObject], bool]:
        make = partial(summaries.create, spec=spec, tenant_id=tenant_id)
        made, replayed = idempotency.run(session, digest, make, tenant_id=tenant_id, kind=_SUMMARIES)
        return queries.describe(session, made), replayed

    data, replayed = await services.transact(create)
    services.doorbell.ring(SERVICE)
    headers = {"Idempotent-Replayed": "true"} if replayed else {}
    if len(data) == 1:
        headers["Location"] = f"/v1/summaries/{data[0]['id']}"
    return JSONResponse(page(data, has_more=False), 202, headers)


@router.post(
    "/v1/summaries/estimate",
    summary="Estimate summaries",
    responses=responses(200, SummaryEstimateReply, "The estimate", 400, 404, 409, 413, 503),
    openapi_extra=json_body(SummaryEstimateRequest),
)
async def estimate(request: Request, services: ServicesDep, tenant_id: TenantDep) -> JSONResponse:
    """Estimate chunks, levels, jobs, tokens and time, without submitting anything."""
    asked = parse(SummaryEstimateRequest, await read_body(request, max_bytes=_MAX_BYTES))
    model = await _model(services, asked.model)
    async with services.cpu.estimate(tenant_id):
        return JSONResponse(await estimate_summaries(services, asked, tenant_id=tenant_id, model=model))


@router.get(
    "/v1/summaries",
    summary="List summaries",
    responses=responses(200, SummaryListReply, "One page", 400, 503),
)
async def list_summaries(
    services: ServicesDep, tenant_id: TenantDep, query: Annotated[SummaryListQuery, Query()]
) -> JSONResponse:
    """List your summaries, newest first. Pages stay stable while summaries are added."""
    wanted = parse_range(query, ids.SUMMARY, tenant_id=tenant_id)
    document_id = parse_optional(
        query.document or None, ids.parse_document_id, param="document", message="There is no such document."
    )
    which = SummaryFilter(state=query.state, custom_id=query.custom_id, document_id=document_id)

    def read(session: Session) -> dict[str, Any]:
        found = summaries.list_summaries(session, which, wanted)
        return page(queries.describe(session, found.items), has_more=found.has_more)

    return JSONResponse(await services.transact(read))


@router.get(
    "/v1/summaries/{summary_id}",
    summary="Get a summary",
    responses=responses(200, SummaryWithChunksReply, "The summary, with its chunks", 400, 404, 503),
)
async def get_summary(
    summary_id: SummaryIdDep,
    services: ServicesDep,
    tenant_id: TenantDep,
    wait: Annotated[float, wait_seconds("summary")] = 0,
    chunks: Chunks = True,  # noqa: FBT002  # a query parameter
    chunks_start: ChunksStart = 0,
    chunks_limit: ChunksLimit = MAX_LISTED_CHUNKS,
) -> JSONResponse:
    """Get the summary now or, with `wait`, once it has ended or the time is up."""
    wanted = ChunkRange(chunks_start, chunks_limit) if chunks else None
    if wait:
        await services.transact(summaries.get, summary_id=summary_id, tenant_id=tenant_id)
        await _until_ended(services, summary_id, seconds=wait)
    return JSONResponse(
        await services.transact(_read, summary_id=summary_id, tenant_id=tenant_id, chunks=wanted)
    )


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
    summary_id: SummaryIdDep,
    services: ServicesDep,
    tenant_id: TenantDep,
    form: Annotated[Literal["json", "md", "csv"], Query(alias="format")] = "json",
) -> Response:
    """Get an ended summary's result: JSON, Markdown with links to sources, or CSV."""

    def read(session: Session) -> tuple[SummaryWithChunks, dict[str, str]]:
        summary = summaries.get(session, summary_id, tenant_id=tenant_id)
        if summary.state not in TERMINAL:
            raise JobNotFinishedError("The summary has not ended yet; poll it, or wait with ?wait=.")
        found = queries.describe_with_chunks(session, summary)
        return found, queries.titles(session, summary.id) if form == "md" else {}

    found, titles = await services.transact(read)
    if form == "json":
        return JSONResponse(formats.result_object(found))
    text = formats.as_csv(found) if form == "csv" else formats.as_markdown(found, titles)
    return Response(text, media_type=_MEDIA_TYPES[form])


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
    await services.transact(summaries.cancel, summary_id=summary_id, tenant_id=tenant_id)
    # In its own transaction, because it must lock the rows of jobs first; a service worker repeats it.
    await services.transact(summaries.stop_jobs, summary_id=summary_id, tenant_id=tenant_id)
    services.doorbell.ring(SERVICE)
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
    return queries.describe(session, [summary])[0]


async def _until_ended(services: Services, summary_id: UUID, *, seconds: float) -> None:
    """Wait until the summary ends or is deleted, or the time is up."""
    with suppress(TimeoutError):
        async with (
            asyncio.timeout(seconds),
            aclosing(services.summary_changes.changes(summary_id)) as changes,
        ):
            async for seen in changes:
                if seen.state in TERMINAL:
                    return


async def _model(services: Services, asked: str | None) -> str:
    """Resolve the requested model; the default is the served one.

    Raises:
        ModelNotFoundError: no engine serves it.
    """
    served = services.settings.engine.model
    if asked is None or asked == served:
        return served
    if asked not in await services.transact(registry.registered_capacities):
        raise ModelNotFoundError(param="model")
    return asked


def _specification(asked: SummaryRequest, services: Services, model: str) -> SummarySpec:
    callback = check_callback(asked.webhook_url, asked.webhook_secret, services.settings.webhooks)
    return SummarySpec(
        document_ids=parse_documents(asked.documents),
        model=model,
        combine=asked.combine,
        style=Style(asked.style),
        length=asked.length,
        language=asked.language,
        instructions=asked.instructions,
        focus=asked.focus,
        chat_template_kwargs=asked.chat_template_kwargs,
        on_gap=OnGap(asked.on_gap),
        chunk_tokens=asked.chunk_tokens,
        overlap_tokens=asked.overlap_tokens,
        rank=PRIORITIES[asked.priority],
        custom_id=asked.custom_id,
        metadata=asked.metadata,
        webhook_url=callback.url,
        webhook_secret=callback.secret,
        window=WINDOWS[asked.completion_window] if asked.completion_window else None,
    )


def _find(session: Session, recorded: UUID | JsonObject) -> list[Summary] | None:
    """Find the summaries of an earlier request.

    Returns:
        None: at least one no longer exists, so all are made again.
    """
    listed = recorded.get("summary_ids") if isinstance(recorded, dict) else None
    if not isinstance(listed, list):
        return None
    found = [session.get(Summary, UUID(hex=each)) for each in listed]
    kept = [each for each in found if each is not None]
    return kept if len(kept) == len(found) else None


def _ids_to_record(made: list[Summary]) -> JsonObject:
    return {"summary_ids": [each.id.hex for each in made]}


_SUMMARIES: RequestKind[list[Summary]] = RequestKind("summaries", record=_ids_to_record, find=_find)
