"""Batches over HTTP: create, get, list and cancel as in OpenAI's API, plus retry and estimate."""

from functools import partial
from typing import Annotated, Final

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import JSONResponse
from sqlalchemy.orm import Session

from api.batches import estimates, verbs
from api.batches.replies import BatchListReply, BatchReply, EstimateReply
from api.batches.requests import BatchRequest, EstimateRequest
from api.http.body import parse, read_body
from api.http.callbacks import check_callback
from api.http.dependencies import ServicesDep, TenantDep
from api.http.idempotency import IdempotencyDep
from api.http.identifiers import BatchIdDep, PageQuery, parse_field, parse_range
from api.http.openapi import json_body, responses
from api.http.replies import page
from jobs import batches, ids
from jobs.batches import BatchSpec
from jobs.batches.views import MAX_LISTED_ERRORS, batch_object
from jobs.doorbell import SERVICE
from jobs.models.batch import Batch
from jobs.states.batch import Endpoint

router = APIRouter(tags=["batches"])

# Far more than 16 metadata pairs need.
_MAX_BYTES: Final = 64 * 1024

RetryCount = Annotated[
    int,
    Header(
        alias="x-stainless-retry-count",
        ge=0,
        description="Sent by OpenAI's clients. Above 0, a request repeated within minutes creates no batch.",
    ),
]


@router.post(
    "/v1/batches",
    summary="Create a batch",
    responses=responses(200, BatchReply, "The batch, being validated", 400, 409, 413, 503),
    openapi_extra=json_body(BatchRequest),
)
async def create_batch(
    request: Request,
    services: ServicesDep,
    tenant_id: TenantDep,
    idempotency: IdempotencyDep,
    retry_count: RetryCount = 0,
) -> JSONResponse:
    """Create a batch that runs every line of an uploaded file as a job.

    The file is validated afterwards; the batch reports what is wrong with it.
    """
    asked = parse(BatchRequest, await read_body(request, max_bytes=_MAX_BYTES))
    callback = check_callback(asked.webhook_url, asked.webhook_secret, services.settings.webhooks)
    await services.admit_callback(callback.url, tenant_id=tenant_id)
    spec = BatchSpec(
        input_file_id=parse_field(
            asked.input_file_id, ids.parse_file_id, param="input_file_id", message="There is no such file."
        ),
        endpoint=Endpoint(asked.endpoint),
        completion_window=asked.completion_window,
        metadata=asked.metadata,
        output_expires_seconds=asked.output_expires_after.seconds if asked.output_expires_after else None,
        webhook_url=callback.url,
        webhook_secret=callback.secret,
    )

    make = verbs.traced_batch(partial(batches.create, spec=spec, tenant_id=tenant_id))

    def create(session: Session) -> Batch:
        if idempotency.key is not None:
            return idempotency.run(session, spec.sha256, make, tenant_id=tenant_id, kind=verbs.BATCH)[0]
        batches.wait_for_others(session, spec)
        repeated = batches.find_repeated(session, spec, tenant_id=tenant_id) if retry_count else None
        return repeated or make(session)

    batch = await services.transact(create)
    services.doorbell.ring(SERVICE)
    return JSONResponse(batch_object(batch))


@router.post(
    "/v1/batches/estimate",
    summary="Estimate a batch",
    responses=responses(200, EstimateReply, "The estimate", 400, 413, 503),
    openapi_extra=json_body(EstimateRequest),
)
async def estimate_batch(request: Request, services: ServicesDep, tenant_id: TenantDep) -> JSONResponse:
    """Estimate tokens, KV blocks, failing lines and time, without submitting anything."""
    asked = parse(EstimateRequest, await read_body(request, max_bytes=_MAX_BYTES))
    async with services.cpu.estimate(tenant_id):
        return JSONResponse(await estimates.estimate(services, asked, tenant_id=tenant_id))


@router.get(
    "/v1/batches", summary="List batches", responses=responses(200, BatchListReply, "One page", 400, 503)
)
async def list_batches(
    services: ServicesDep, tenant_id: TenantDep, query: Annotated[PageQuery, Query()]
) -> JSONResponse:
    """List your batches, newest first."""
    wanted = parse_range(query, ids.BATCH, tenant_id=tenant_id)
    found = await services.transact(batches.list_batches, wanted=wanted)
    data = [batch_object(batch, max_errors=MAX_LISTED_ERRORS) for batch in found.items]
    return JSONResponse(page(data, has_more=found.has_more))


@router.get(
    "/v1/batches/{batch_id}",
    summary="Get a batch",
    responses=responses(200, BatchReply, "The batch", 404, 503),
)
async def get_batch(batch_id: BatchIdDep, services: ServicesDep, tenant_id: TenantDep) -> JSONResponse:
    """Get the batch; its counts are at most a second old."""
    batch = await services.transact(batches.get, batch_id=batch_id, tenant_id=tenant_id)
    return JSONResponse(batch_object(batch))


@router.post(
    "/v1/batches/{batch_id}/cancel",
    summary="Cancel a batch",
    responses=responses(200, BatchReply, "The batch, cancelling", 404, 409, 503),
)
async def cancel_batch(batch_id: BatchIdDep, services: ServicesDep, tenant_id: TenantDep) -> JSONResponse:
    """Cancel the batch.

    Finished lines stay in the result files; the others end within seconds.
    """
    return JSONResponse(batch_object(await verbs.cancel(services, batch_id, tenant_id=tenant_id)))


@router.post(
    "/v1/batches/{batch_id}/retry",
    summary="Retry a batch's failed lines",
    responses=responses(200, BatchReply, "A new batch; `retry_of` names the old one", 400, 404, 409, 503),
)
async def retry_batch(
    batch_id: BatchIdDep, services: ServicesDep, tenant_id: TenantDep, idempotency: IdempotencyDep
) -> JSONResponse:
    """Run the lines in an ended batch's error file again, as a new batch."""
    guard = idempotency.for_request(batch_id.bytes)
    return JSONResponse(batch_object(await verbs.retry(services, batch_id, tenant_id=tenant_id, guard=guard)))
