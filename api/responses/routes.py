"""Responses over HTTP: create, get, cancel, delete, and list the items of the input."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from functools import partial
from typing import Annotated, Final
from uuid import UUID

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse
from pydantic_core import to_json
from starlette.responses import Response

from api.completions import interactive
from api.completions.placement import REPLAYED, repetition_of
from api.completions.routes import error_of, give_up
from api.http import deliveries
from api.http.body import read_body
from api.http.deliveries import HandedOver
from api.http.departures import unless_gone
from api.http.dependencies import CallerDep, ServicesDep, TenantDep
from api.http.event_responses import EventResponse
from api.http.idempotency import IdempotencyDep, IdempotencyHeaders
from api.http.identifiers import ResponseIdDep
from api.http.openapi import json_body, responses
from api.http.replies import page
from api.http.sse import EVENT_STREAM
from api.responses.acceptance import AcceptedResponse, accept
from api.responses.replies import DeletedResponseReply, InputItemListReply, ResponseReply
from api.responses.requests import InputItemQuery, RetrievalQuery
from api.responses.streams import ResponseStream
from api.runtime.api_keys import Caller
from api.runtime.services import Services
from jobs import deletion, ids, lifecycle, telemetry
from jobs.errors import (
    InvalidRequestError,
    JobNotFinishedError,
    LongbatchError,
    NotFoundError,
    UnavailableError,
)
from jobs.models import Job
from jobs.responses import rows
from jobs.responses.items import listed_items
from jobs.responses.objects import ResponseOutput, ResponseState, response_object
from jobs.responses.requests import ResponseRequest
from jobs.responses.rows import KeptResponse
from jobs.states import TERMINAL

router = APIRouter(tags=["responses"])

_EVENTS: Final = {
    EVENT_STREAM: "event: response.output_text.delta\n"
    'data: {"type":"response.output_text.delta","sequence_number":8,"delta":"Paris",…}\n\n'
}

# A running job stops within a second; a caller that cancels hears how it ended if it does not take longer.
_CANCEL_SECONDS: Final = 5.0


@router.post(
    "/v1/responses",
    summary="Create a response",
    responses=responses(
        200,
        ResponseReply,
        "The response, or with `stream` its events",
        *(400, 404, 409, 413, 500, 503, 504),
        raw=_EVENTS,
    ),
    openapi_extra=json_body(ResponseRequest),
)
async def create_response(
    request: Request, services: ServicesDep, caller: CallerDep, idempotency: IdempotencyDep
) -> Response:
    """Generate an answer while you wait, or with `background` submit it and return at once.

    Closing the connection cancels a response that is not in the background, unless the request has an
    Idempotency-Key. With `stream` the answer is server-sent events, numbered by `sequence_number`.
    """
    raw = await read_body(request, max_bytes=services.settings.api.max_body_bytes)
    most_tokens = await interactive.longest_prompt(services, len(raw))
    acceptance = await services.acceptance()
    accepted = await services.compute_apart(len(raw), accept, raw, acceptance, most_tokens)
    del raw  # frees megabytes while the database works
    if accepted.stream:
        return await _streamed(services, accepted, idempotency, caller)
    if accepted.is_background:
        return await _submitted(services, accepted, idempotency, caller)
    return await _answered(request, services, accepted, idempotency, caller)


@router.get(
    "/v1/responses/{response_id}",
    summary="Get a response",
    responses=responses(
        200, ResponseReply, "The response, or with `stream` its events", 400, 404, 503, raw=_EVENTS
    ),
)
async def get_response(
    request: Request,
    response_id: ResponseIdDep,
    services: ServicesDep,
    caller: CallerDep,
    query: Annotated[RetrievalQuery, Query()],
) -> Response:
    """Get the response now; its output is there once it has ended.

    With `stream` its events come from the first on, or from after the one that `starting_after` numbers.
    """
    if query.starting_after is not None and not query.stream:
        raise InvalidRequestError("starting_after requires stream.", param="starting_after")
    if not query.stream:
        kept = await services.transact(rows.find, response_id, tenant_id=caller.tenant_id)
        if kept.job.state in TERMINAL:
            deliveries.note(request, HandedOver([kept.job.id]))
        return await _shown(services, kept)
    after = -1 if query.starting_after is None else query.starting_after
    with services.event_streams.opening(caller) as stream:
        kept = await services.transact(rows.find, response_id, tenant_id=caller.tenant_id)
        found = ResponseStream(
            services, kept.job, kept.repeated, is_background=kept.is_background, after=after
        )
        return EventResponse(stream, found.events())


@router.post(
    "/v1/responses/{response_id}/cancel",
    summary="Cancel a response",
    responses=responses(200, ResponseReply, "The response", 400, 404, 503),
)
async def cancel_response(
    response_id: ResponseIdDep, services: ServicesDep, tenant_id: TenantDep
) -> Response:
    """Cancel a response that runs in the background; one that has ended stays as it is.

    Its partial output is kept.
    """
    kept = await services.transact(rows.find, response_id, tenant_id=tenant_id)
    if not kept.is_background:
        raise InvalidRequestError("Only a response in the background can be cancelled.", param="response_id")
    job = await services.transact(lifecycle.cancel, job_id=response_id, tenant_id=tenant_id)
    services.doorbell.ring_for([job])
    if job.state not in TERMINAL:
        await services.poller.until_ended(response_id, tenant_id=tenant_id, seconds=_CANCEL_SECONDS)
    kept = await services.transact(rows.find, response_id, tenant_id=tenant_id)
    return await _shown(services, kept)


@router.delete(
    "/v1/responses/{response_id}",
    summary="Delete a response",
    responses=responses(200, DeletedResponseReply, "The response was deleted", 404, 409, 503),
)
async def delete_response(
    response_id: ResponseIdDep, services: ServicesDep, tenant_id: TenantDep
) -> JSONResponse:
    """Delete a response that has ended, with its input and output."""
    await services.transact(rows.find, response_id, tenant_id=tenant_id)
    if not await services.transact(deletion.remove, job_id=response_id, tenant_id=tenant_id):
        raise JobNotFinishedError("Only a response that has ended can be deleted; cancel it first.")
    return JSONResponse({"id": ids.response_id(response_id), "object": "response", "deleted": True})


@router.get(
    "/v1/responses/{response_id}/input_items",
    summary="List a response's input items",
    responses=responses(200, InputItemListReply, "One page", 400, 404, 503),
)
async def list_input_items(
    response_id: ResponseIdDep,
    services: ServicesDep,
    tenant_id: TenantDep,
    query: Annotated[InputItemQuery, Query()],
) -> JSONResponse:
    """List the items of the input, the last one first unless `order` is `asc`."""
    stored = await services.transact(rows.read_items, response_id, tenant_id=tenant_id)
    items = listed_items(response_id, stored)
    if query.order == "desc":
        items.reverse()
    start = 0
    if query.after is not None:
        places = {str(item["id"]): place for place, item in enumerate(items)}
        if query.after not in places:
            raise InvalidRequestError("The response has no input item with the id in `after`.", param="after")
        start = places[query.after] + 1
    end = start + query.limit
    return JSONResponse(page(items[start:end], has_more=end < len(items)))


async def _shown(
    services: Services, kept: KeptResponse, *, headers: Mapping[str, str] | None = None
) -> Response:
    """Write the response; log probabilities make it long, so a thread writes them."""
    if not kept.output.num_json_bytes:
        return JSONResponse(kept.as_object(), headers=headers)
    body = await services.compute(kept.output.num_json_bytes, _written, kept)
    return Response(body, headers=headers, media_type=JSONResponse.media_type)


def _written(kept: KeptResponse) -> bytes:
    return to_json(kept.as_object())


async def _submitted(
    services: Services, accepted: AcceptedResponse, idempotency: IdempotencyHeaders, caller: Caller
) -> Response:
    """Submit a response in the background, and return what it is now."""
    parsed = accepted.parsed
    await services.admit_callback(parsed.placement.callback.url, tenant_id=caller.tenant_id)
    repetition = repetition_of(
        idempotency, accepted.parsed.request_sha256, is_submission=accepted.is_background
    )
    job, is_repeated = await interactive.submit(services, parsed, caller=caller, repetition=repetition)
    if is_repeated:
        kept = await services.transact(rows.find, job.id, tenant_id=caller.tenant_id)
        return await _shown(services, kept, headers=REPLAYED)
    return JSONResponse(response_object(ResponseState.of(job), accepted.repeated))


async def _streamed(
    services: Services, accepted: AcceptedResponse, idempotency: IdempotencyHeaders, caller: Caller
) -> EventResponse:
    """Submit a response, and stream its events."""
    repetition = repetition_of(
        idempotency, accepted.parsed.request_sha256, is_submission=accepted.is_background
    )
    tenant_id = caller.tenant_id
    await services.admit_callback(accepted.parsed.placement.callback.url, tenant_id=tenant_id)
    with services.event_streams.opening(caller) as stream:
        job, is_repeated = await interactive.submit(
            services, accepted.parsed, caller=caller, repetition=repetition
        )
        found = ResponseStream(services, job, accepted.repeated, is_background=accepted.is_background)
        goes_on = accepted.is_background or repetition.guard is not None
        events = found.events() if goes_on else _until_left(services, found, is_stored=accepted.is_stored)
        answer = EventResponse(stream, events)
        answer.headers.update(REPLAYED if is_repeated else {})
        return answer


async def _until_left(
    services: Services, found: ResponseStream, *, is_stored: bool
) -> AsyncGenerator[bytes, None]:
    """Yield the events of a response that a reader who leaves cancels."""
    try:
        async with aclosing(found.events()) as events:
            async for event in events:
                yield event
    finally:
        await asyncio.shield(_leave(services, found, is_stored=is_stored))


async def _leave(services: Services, found: ResponseStream, *, is_stored: bool) -> None:
    """Cancel the job unless it has ended, and delete it if it is not to be stored."""
    job = found.job
    if not found.has_ended:
        await give_up(services, job.id, tenant_id=job.tenant_id)
    if not is_stored:
        await _forget(services, job, tenant_id=job.tenant_id)


async def _answered(
    request: Request,
    services: Services,
    accepted: AcceptedResponse,
    idempotency: IdempotencyHeaders,
    caller: Caller,
) -> Response:
    """Submit a response whose caller waits, and return it once it has ended."""
    repetition = repetition_of(
        idempotency, accepted.parsed.request_sha256, is_submission=accepted.is_background
    )
    job, is_repeated = await interactive.submit(
        services, accepted.parsed, caller=caller, repetition=repetition
    )
    ended: interactive.Completion | None = None
    try:
        until = interactive.until_ended(services, job.id, tenant_id=caller.tenant_id)
        ended = await unless_gone(request, until)
    finally:
        if ended is None and repetition.guard is None:
            await give_up(services, job.id, tenant_id=caller.tenant_id)
    if (error := error_of(ended.job)) is not None:
        raise error
    if not accepted.is_stored and repetition.guard is None:
        await _forget(services, ended.job, tenant_id=caller.tenant_id)
    deliveries.note(request, HandedOver([ended.job.id]))
    kept = KeptResponse(ended.job, accepted.repeated, ResponseOutput(ended.output, ended.reasoning_tokens))
    return await _shown(services, kept, headers=REPLAYED if is_repeated else None)


async def _forget(services: Services, job: Job, *, tenant_id: UUID) -> None:
    """Delete the job of a response that is not to be stored; a failure leaves it to its retention."""
    try:
        remove = partial(deletion.forget, job_id=job.id, tenant_id=tenant_id)
        await services.transactions.run(remove, tenant_ids=[tenant_id])  # the request's task may have ended
    except (NotFoundError, UnavailableError) as error:
        _warn(error)


def _warn(error: LongbatchError) -> None:
    telemetry.logger().warning(telemetry.LOOP_FAILED, loop="response-delete", error=error.code)
