"""Interactive routes: chat and text completions compatible with OpenAI's, and plain generate."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from uuid import UUID

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic_core import to_json
from starlette.responses import Response

from api.completions import choices, formats, interactive
from api.completions.choices import ChoiceChunks
from api.completions.formats import AnswerFormat
from api.completions.interactive import Completion, ParsedRequest
from api.completions.placement import REPLAYED, repetition_of
from api.completions.replies import ChatCompletionReply, GenerateReply, TextCompletionReply
from api.completions.requests import GenerateRequest
from api.http import deliveries
from api.http.body import read_body
from api.http.deliveries import HandedOver
from api.http.departures import unless_gone
from api.http.dependencies import CallerDep, ServicesDep
from api.http.errors import envelope, status_of
from api.http.event_responses import EventResponse
from api.http.idempotency import IdempotencyDep, IdempotencyHeaders
from api.http.openapi import json_body, responses
from api.http.sse import EVENT_STREAM, HEARTBEAT, merged
from api.runtime.api_keys import Caller
from api.runtime.services import Services
from jobs import telemetry
from jobs.errors import (
    InvalidOutputError,
    LongbatchError,
    RequestCancelledError,
    RequestExpiredError,
    RequestFailedError,
    UnsupportedParameterError,
)
from jobs.models import Job, JsonObject
from jobs.prompts.openai import ChatRequest, TextRequest
from jobs.states import JobState
from jobs.states.batch import Endpoint

router = APIRouter(tags=["interactive"])

_SCORE_BYTES: Final = 70  # of a log probability as JSON
_ERRORS: Final = (400, 404, 409, 413, 500, 503, 504)
_CHAT_EVENTS: Final = {
    EVENT_STREAM: 'data: {"object":"chat.completion.chunk","choices":[{"delta":{"content":"Paris"},…}],…}\n\n'
    "data: [DONE]\n\n"
}
_TEXT_EVENTS: Final = {
    EVENT_STREAM: 'data: {"object":"text_completion","choices":[{"text":" a time",…}],…}\n\ndata: [DONE]\n\n'
}
_PLAIN_EVENTS: Final = {
    EVENT_STREAM: 'data: {"text":" a time"}\n\ndata: {"finish_reason":"stop","usage":{…}}\n\n'
}


@router.post(
    "/v1/chat/completions",
    summary="Create a chat completion",
    responses=responses(
        200, ChatCompletionReply, "The answer, or with `stream` its chunks", *_ERRORS, raw=_CHAT_EVENTS
    ),
    openapi_extra=json_body(ChatRequest),
)
async def create_chat_completion(
    request: Request, services: ServicesDep, caller: CallerDep, idempotency: IdempotencyDep
) -> Response:
    """Generate an answer while you wait, ahead of batch work.

    Closing the connection cancels it, unless the request has an Idempotency-Key.
    """
    raw = await read_body(request, max_bytes=services.settings.api.max_body_bytes)
    parsed = await interactive.parse_request(services, Endpoint.CHAT, raw)
    return await _answer(request, services, parsed, formats.CHAT, caller, idempotency)


@router.post(
    "/v1/completions",
    summary="Create a text completion",
    responses=responses(
        200, TextCompletionReply, "The answer, or with `stream` its chunks", *_ERRORS, raw=_TEXT_EVENTS
    ),
    openapi_extra=json_body(TextRequest),
)
async def create_completion(
    request: Request, services: ServicesDep, caller: CallerDep, idempotency: IdempotencyDep
) -> Response:
    """Continue a prompt while you wait, like chat but without a chat template."""
    raw = await read_body(request, max_bytes=services.settings.api.max_body_bytes)
    parsed = await interactive.parse_request(services, Endpoint.TEXT, raw)
    return await _answer(request, services, parsed, formats.TEXT, caller, idempotency)


@router.post(
    "/generate",
    summary="Generate text",
    responses=responses(200, GenerateReply, "The text", *_ERRORS),
    openapi_extra=json_body(GenerateRequest),
)
async def generate(
    request: Request, services: ServicesDep, caller: CallerDep, idempotency: IdempotencyDep
) -> Response:
    """Continue a prompt as it is, with the fewest fields."""
    parsed = await _plain(request, services, stream=False)
    return await _answer(request, services, parsed, formats.PLAIN, caller, idempotency)


@router.post(
    "/generate_stream",
    summary="Generate text as a stream",
    response_class=Response,
    responses=responses(
        200, None, "Any number of `{text}`, then `{finish_reason,usage}`", *_ERRORS, raw=_PLAIN_EVENTS
    ),
    openapi_extra=json_body(GenerateRequest),
)
async def generate_stream(
    request: Request, services: ServicesDep, caller: CallerDep, idempotency: IdempotencyDep
) -> Response:
    """Continue a prompt as `/generate` does, and stream the text as it is generated."""
    parsed = await _plain(request, services, stream=True)
    return await _answer(request, services, parsed, formats.PLAIN, caller, idempotency)


async def _plain(request: Request, services: Services, *, stream: bool) -> ParsedRequest:
    raw = await read_body(request, max_bytes=services.settings.api.max_body_bytes)
    return await interactive.parse_plain_request(services, raw, stream=stream)


async def _answer(
    request: Request,
    services: Services,
    parsed: ParsedRequest,
    shape: AnswerFormat,
    caller: Caller,
    idempotency: IdempotencyHeaders,
) -> Response:
    repetition = repetition_of(idempotency, parsed.request_sha256)
    submit = partial(interactive.submit_choices, services, parsed, caller=caller, repetition=repetition)
    if parsed.generation.stream:
        with services.event_streams.opening(caller) as stream:
            jobs, is_repeated = await submit()
            asked = _Asked(
                jobs, include_usage=parsed.generation.include_usage, ends_with_reader=repetition.guard is None
            )
            events = _events(request, services, asked, shape)
            answer: Response = EventResponse(stream, events, describe=_error_event)
            answer.headers.update(REPLAYED if is_repeated else {})
            return answer
    jobs, is_repeated = await submit()
    ended: list[Completion] | None = None
    try:
        ended = await unless_gone(request, choices.until_all_ended(services, jobs))
    finally:
        # Where one fails, the others are in vain; a caller that left may come back for all of them.
        if len(ended) < len(jobs) if ended is not None else repetition.guard is None:
            await _give_up_all(services, jobs)
    if (error := error_of(ended[0].job)) is not None:
        raise error
    deliveries.note(request, HandedOver([job.id for job in jobs]))
    headers = REPLAYED if is_repeated else None
    if ended[0].output.log_probs is not None:
        body = await services.compute(_num_bytes(ended), _written, shape, ended)
        return Response(body, media_type=JSONResponse.media_type, headers=headers)
    return JSONResponse(choices.whole(shape, ended), headers=headers)


def _num_bytes(ended: Sequence[Completion]) -> int:
    """Estimate how long the log probabilities are as JSON."""
    scored = [each.output.log_probs for each in ended if each.output.log_probs is not None]
    return sum(len(each) * (1 + each.num_top) for each in scored) * _SCORE_BYTES


def _written(shape: AnswerFormat, ended: Sequence[Completion]) -> bytes:
    return to_json(choices.whole(shape, ended))


@dataclass(frozen=True, slots=True)
class _Asked:
    """A stream that a caller asked for.

    Attributes:
        jobs: that generate its choices.
        include_usage: it ends with the usage.
        ends_with_reader: the jobs are cancelled when its reader leaves; otherwise the reader may come back.
    """

    jobs: list[Job]
    include_usage: bool
    ends_with_reader: bool


async def _events(
    request: Request, services: Services, asked: _Asked, shape: AnswerFormat
) -> AsyncGenerator[bytes, None]:
    """Yield the answer as server-sent events; a reader that leaves for good cancels the jobs."""
    chunks = ChoiceChunks(shape, asked.jobs, include_usage=asked.include_usage)
    is_in_vain = asked.ends_with_reader
    try:
        for chunk in chunks.first():
            yield _event(chunk)
        async with aclosing(merged(choices.follow_all(services, asked.jobs))) as updates:
            async for each in updates:
                if each is None:
                    yield HEARTBEAT
                    continue
                index, new = each
                if isinstance(new, Completion) and (error := error_of(new.job)) is not None:
                    is_in_vain = True
                    yield _error_event(error)
                    return
                for chunk in chunks.of(index, new):
                    yield _event(chunk)
        deliveries.note(request, HandedOver([job.id for job in asked.jobs]))
        if shape.closing:
            yield shape.closing
    except LongbatchError as error:
        yield _error_event(error)
    finally:
        if is_in_vain and not chunks.have_ended:
            await asyncio.shield(_give_up_all(services, asked.jobs))


def _event(chunk: JsonObject) -> bytes:
    return b"data: " + to_json(chunk) + b"\n\n"


def _error_event(error: LongbatchError) -> bytes:
    return _event(envelope(status_of(error), error.code, error.message))


def error_of(job: Job) -> LongbatchError | None:
    """Return the error that kept the job from completing.

    Returns:
        None: the job completed.
    """
    match job.state:
        case JobState.COMPLETED:
            return None
        case JobState.CANCELLED:
            return RequestCancelledError()
        case JobState.EXPIRED:
            return RequestExpiredError()
    error: Any = job.error or {}
    if error.get("code") == UnsupportedParameterError.code:
        return UnsupportedParameterError(error.get("message"))
    if error.get("code") == InvalidOutputError.code:
        return InvalidOutputError(error.get("message"))
    return RequestFailedError(f"The engine failed: {error.get('message', 'no details are known')}")


async def _give_up_all(services: Services, jobs: Sequence[Job]) -> None:
    await give_up(services, *(job.id for job in jobs), tenant_id=jobs[0].tenant_id)


async def give_up(services: Services, *job_ids: UUID, tenant_id: UUID) -> None:
    """Cancel the jobs of a caller that left, if the database answers."""
    try:
        await interactive.cancel(services, job_ids, tenant_id=tenant_id)
    except LongbatchError as error:  # the job runs to its end, bounded by its window
        telemetry.logger().warning(telemetry.LOOP_FAILED, loop="interactive-cancel", error=error.code)
