"""Answers over HTTP: ask, estimate, get, list, follow, cancel, delete."""

from functools import partial
from typing import Annotated, Final
from uuid import UUID

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.answers import verbs
from api.answers.replies import (
    AnswersEstimateReply,
    AnswersListReply,
    AnswersSummaryReply,
    AnswersWithEachReply,
    DeletedAnswersReply,
)
from api.answers.requests import AnswersEstimateRequest, AnswersRequest, ReadingListQuery
from api.http.body import parse, read_body
from api.http.departures import unless_gone
from api.http.dependencies import CallerDep, ServicesDep, TenantDep
from api.http.event_responses import EventResponse
from api.http.fields import wait_seconds
from api.http.idempotency import IdempotencyDep
from api.http.identifiers import AnswersIdDep
from api.http.openapi import event_responses, json_body, responses
from api.http.sse import object_events
from api.summaries.lists import MadeList, accepted
from api.summaries.verbs import until_ended
from jobs import ids, questions
from jobs.questions import queries
from jobs.questions.views import AnswersObject, AnswersWithAnswers

router = APIRouter(tags=["answers"])

# 1000 ids, 20,000 characters of questions, a template, however they are escaped, and metadata.
_MAX_BYTES: Final = 512 * 1024

EachAnswer = Annotated[bool, Query(alias="answers", description="Include the answers.")]


@router.post(
    "/v1/answers",
    status_code=202,
    summary="Ask documents questions",
    responses=responses(
        202, AnswersListReply, "Accepted, in the order of the documents", 400, 404, 409, 413, 503
    ),
    openapi_extra=json_body(AnswersRequest),
)
async def create_answers(
    request: Request, services: ServicesDep, tenant_id: TenantDep, idempotency: IdempotencyDep
) -> JSONResponse:
    """Ask each document every question.

    The documents need not be ready yet.
    """
    asked = parse(AnswersRequest, await read_body(request, max_bytes=_MAX_BYTES))
    data, replayed = await verbs.submit(services, asked, tenant_id=tenant_id, idempotency=idempotency)
    return accepted("/v1/answers", data, replayed=replayed)


@router.post(
    "/v1/answers/estimate",
    summary="Estimate answers",
    responses=responses(200, AnswersEstimateReply, "The estimate", 400, 404, 409, 413, 503),
    openapi_extra=json_body(AnswersEstimateRequest),
)
async def estimate(request: Request, services: ServicesDep, tenant_id: TenantDep) -> JSONResponse:
    """Estimate parts, jobs, tokens and time, without submitting anything."""
    asked = parse(AnswersEstimateRequest, await read_body(request, max_bytes=_MAX_BYTES))
    return JSONResponse(await verbs.estimate(services, asked, tenant_id=tenant_id))


@router.get(
    "/v1/answers",
    summary="List answers",
    responses=responses(200, AnswersListReply, "One page", 400, 503),
)
async def list_answers(
    services: ServicesDep, tenant_id: TenantDep, query: Annotated[ReadingListQuery, Query()]
) -> JSONResponse:
    """List your answers, newest first. Pages stay stable while others are added."""
    found = MadeList(ids.ANSWERS, questions.list_answers, queries.describe)
    return await found.answer(services, query, tenant_id=tenant_id)


@router.get(
    "/v1/answers/{answers_id}",
    summary="Get answers",
    responses=responses(200, AnswersWithEachReply, "The document's answers", 400, 404, 503),
)
async def get_answers(
    request: Request,
    answers_id: AnswersIdDep,
    services: ServicesDep,
    tenant_id: TenantDep,
    wait: Annotated[float, wait_seconds("answers")] = 0,
    with_each: EachAnswer = True,  # noqa: FBT002  # a query parameter
) -> JSONResponse:
    """Get the answers now or, with `wait`, once they have ended or the time is up."""
    if wait:
        await services.transact(questions.get, answers_id=answers_id, tenant_id=tenant_id)
        await unless_gone(request, until_ended(services, answers_id, seconds=wait))
    return JSONResponse(
        await services.transact(_read, answers_id=answers_id, tenant_id=tenant_id, with_each=with_each)
    )


@router.get(
    "/v1/answers/{answers_id}/events",
    summary="Follow answers",
    response_class=Response,
    responses=event_responses('id: 0\nevent: answers\ndata: {"id":"ans_…","state":"running"}\n\n'),
)
async def follow_answers(answers_id: AnswersIdDep, services: ServicesDep, caller: CallerDep) -> EventResponse:
    """Stream server-sent events until the answers have ended.

    Each event is the object without the answers, sent first and whenever its counts change.
    """
    read = partial(_read, answers_id=answers_id, tenant_id=caller.tenant_id)
    again = partial(services.transactions.run, read, tenant_ids=[caller.tenant_id])
    with services.event_streams.opening(caller) as stream:
        await again()
        changes = services.summary_changes.changes(answers_id)
        return EventResponse(stream, object_events("answers", changes, again))


@router.post(
    "/v1/answers/{answers_id}/cancel",
    summary="Cancel answers",
    responses=responses(200, AnswersSummaryReply, "The answers", 404, 503),
)
async def cancel_answers(
    answers_id: AnswersIdDep, services: ServicesDep, tenant_id: TenantDep
) -> JSONResponse:
    """Cancel the answers and their jobs; running ones stop within a second.

    Answers that have ended stay as they are.
    """
    await verbs.cancel(services, answers_id, tenant_id=tenant_id)
    return JSONResponse(await services.transact(_read, answers_id=answers_id, tenant_id=tenant_id))


@router.delete(
    "/v1/answers/{answers_id}",
    summary="Delete answers",
    responses=responses(200, DeletedAnswersReply, "The answers were deleted", 404, 409, 503),
)
async def delete_answers(
    answers_id: AnswersIdDep, services: ServicesDep, tenant_id: TenantDep
) -> JSONResponse:
    """Delete answers that have ended, with their jobs; the document stays."""
    await services.transact(questions.remove, answers_id=answers_id, tenant_id=tenant_id)
    return JSONResponse({"id": ids.answers_id(answers_id), "object": "answers", "deleted": True})


def _read(
    session: Session, *, answers_id: UUID, tenant_id: UUID, with_each: bool = False
) -> AnswersObject | AnswersWithAnswers:
    asked = questions.get(session, answers_id, tenant_id=tenant_id)
    if with_each:
        return queries.describe_whole(session, asked)
    return queries.describe(session, [asked])[0]
