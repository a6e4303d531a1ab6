"""Jobs over HTTP: submit, get, list, read the result, cancel, delete."""

from functools import partial
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import JSONResponse
from pydantic_core import to_json
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.http import deliveries
from api.http.body import MAX_VALUES, parse, read_body
from api.http.deliveries import HandedOver
from api.http.departures import unless_gone
from api.http.dependencies import CallerDep, ServicesDep, TenantDep
from api.http.fields import wait_seconds
from api.http.idempotency import IdempotencyDep, IdempotencyHeaders
from api.http.identifiers import JobIdDep, parse_optional
from api.http.openapi import json_body, responses
from api.http.replies import page
from api.jobs.acceptance import request_sha256, specification
from api.jobs.replies import DeletedReply, JobListReply, JobReply, JobWithQueueReply, ResultReply
from api.jobs.requests import JobListQuery, JobRequest
from api.jobs.responses import job_response, polled_job_response
from api.jobs.tensors import check_files, outputs_object
from api.runtime.api_keys import Caller
from api.runtime.services import Acceptance, Services
from jobs import deletion, ids, lifecycle, queries, submission
from jobs.answers import log_probs
from jobs.database.paging import Range
from jobs.embeddings.vectors import unpack
from jobs.errors import JobNotFinishedError, LongbatchError, NotFoundError
from jobs.models import Job, JsonObject, Result
from jobs.prompts.openai import usage_object
from jobs.prompts.tools.calls import call_objects, read_calls
from jobs.queries import JobFilter
from jobs.states import TERMINAL, JobState
from jobs.submission.job_specs import JobSpec
from jobs.submission.repetition import Repetition
from jobs.tenants.idempotency import IdempotencyGuard
from jobs.tenants.keys import Scope
from jobs.views import job_object

router = APIRouter(tags=["jobs"])


# How much longer packed log probabilities are as JSON.
_AS_JSON = 16

IfNoneMatch = Annotated[
    str | None, Header(alias="If-None-Match", description="An ETag from an earlier response.")
]


@router.post(
    "/v1/jobs",
    status_code=202,
    summary="Submit a job",
    responses=responses(202, JobReply, "Accepted; Location has the job's URL", 400, 404, 409, 413, 503),
    openapi_extra=json_body(JobRequest),
)
async def create_job(
    request: Request, services: ServicesDep, caller: CallerDep, idempotency: IdempotencyDep
) -> Response:
    """Submit a job, durable once this returns; a short prompt is counted at once."""
    max_values = None if Scope.ENGINE in caller.scopes else MAX_VALUES  # tensors have more
    raw = await read_body(request, max_bytes=services.settings.api.max_body_bytes, max_values=max_values)
    acceptance = await services.acceptance(scopes=caller.scopes)
    spec, guard = await services.compute_apart(len(raw), _parse_job, raw, acceptance, idempotency)
    del raw  # frees megabytes while the database works
    (located,) = await services.locate([spec])
    if isinstance(located, LongbatchError):
        raise located
    for error in (await check_files(services, [spec], tenant_id=caller.tenant_id)).values():
        raise error
    await services.admit_callback(located.webhook_url, tenant_id=caller.tenant_id)
    job, replayed = await _submit(services, located, guard, caller)
    headers = {"Location": f"/v1/jobs/{ids.job_id(job.id)}", "Retry-After": "1"}
    if replayed:
        headers["Idempotent-Replayed"] = "true"
    return job_response(job, status=202, headers=headers)


@router.get("/v1/jobs", summary="List jobs", responses=responses(200, JobListReply, "One page", 400, 503))
async def list_jobs(
    services: ServicesDep, tenant_id: TenantDep, query: Annotated[JobListQuery, Query()]
) -> JSONResponse:
    """List your jobs, newest first. Pages stay stable while jobs are added."""
    which = JobFilter(state=query.state, task=query.task, custom_id=query.custom_id)
    message = "There is no job with the id in `after`."
    after = parse_optional(query.after, ids.parse_job_id, param="after", message=message)
    wanted = Range(tenant_id, after, query.limit)
    found = await services.transact(queries.list_jobs, which=which, wanted=wanted)
    data = [job_object(job) for job in found.items]
    return JSONResponse(page(data, has_more=found.has_more))


@router.get(
    "/v1/jobs/{job_id}",
    summary="Get a job",
    responses=responses(
        200, JobWithQueueReply, "The job and, while it waits, its queue position", 400, 404, 503
    )
    | {304: {"description": "Unchanged since the version in If-None-Match"}},
)
async def get_job(
    request: Request,
    job_id: JobIdDep,
    services: ServicesDep,
    tenant_id: TenantDep,
    wait: Annotated[float, wait_seconds("job")] = 0,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Get the job now or, with `wait`, once it has ended or the time is up.

    Only this operation returns `queue`. The ETag does not cover it, so omit If-None-Match to follow it.
    """
    poller = services.poller
    if wait:
        ended = poller.until_ended(job_id, tenant_id=tenant_id, seconds=wait)
        job = await unless_gone(request, ended)
    else:
        job = await poller.now(job_id, tenant_id=tenant_id)
    if job is None:
        raise NotFoundError("There is no such job.")
    return await polled_job_response(job, services.queue_positions.of, if_none_match=if_none_match)


@router.get(
    "/v1/jobs/{job_id}/result",
    summary="Get a job's result",
    responses=responses(200, ResultReply, "The output, partial unless the job completed", 404, 409, 503),
)
async def get_result(
    request: Request, job_id: JobIdDep, services: ServicesDep, tenant_id: TenantDep
) -> Response:
    """Get the output of a job that has ended, in any state."""
    job, result, outputs = await services.transact(_read_result, job_id=job_id, tenant_id=tenant_id)
    if not outputs:  # files that the caller has yet to read
        deliveries.note(request, HandedOver([job.id]))
    body: JsonObject = {
        "id": ids.job_id(job.id),
        "state": job.state,
        "output": result.output if result else None,
        "reasoning_content": result.reasoning if result else None,
        "tool_calls": call_objects(read_calls(result.tool_calls), job.id) or None if result else None,
        "finish_reason": job.finish_reason,
        "usage": usage_object(
            prompt_tokens=job.prompt_tokens,
            completion_tokens=job.completion_tokens,
            reasoning_tokens=result.reasoning_tokens if result else 0,
            cached_tokens=job.cached_tokens,
        ),
        "error": job.error,
        "logprobs": None,
        "engine_outputs": outputs,
        "embedding": unpack(result.embedding) if result and result.embedding else None,
    }
    if result is None or result.log_probs is None:
        return JSONResponse(body)
    written = await services.compute(_AS_JSON * len(result.log_probs), _with_scores, body, result.log_probs)
    return Response(written, media_type=JSONResponse.media_type)


@router.post(
    "/v1/jobs/{job_id}/cancel",
    summary="Cancel a job",
    responses=responses(200, JobReply, "The job", 404, 503),
)
async def cancel_job(job_id: JobIdDep, services: ServicesDep, tenant_id: TenantDep) -> Response:
    """Cancel the job; a running one stops within a second.

    A job that has ended stays as it is.
    """
    job = await services.transact(lifecycle.cancel, job_id=job_id, tenant_id=tenant_id)
    services.doorbell.ring_for([job])
    return job_response(job)


@router.delete(
    "/v1/jobs/{job_id}",
    summary="Delete a job",
    responses=responses(200, DeletedReply, "The job was deleted", 404, 409, 503),
)
async def delete_job(job_id: JobIdDep, services: ServicesDep, tenant_id: TenantDep) -> JSONResponse:
    """Delete a job that has ended, with its result and the texts no other job shares."""
    deleted = await services.transact(deletion.remove, job_id=job_id, tenant_id=tenant_id)
    if not deleted:
        raise JobNotFinishedError("Only a job that has ended can be deleted; cancel it first.")
    return JSONResponse({"id": ids.job_id(job_id), "object": "job", "deleted": True})


def _with_scores(body: JsonObject, packed: bytes) -> bytes:
    return to_json(body | {"logprobs": log_probs.read(packed).for_chat()})


def _parse_job(
    raw: bytearray, acceptance: Acceptance, idempotency: IdempotencyHeaders
) -> tuple[JobSpec, IdempotencyGuard | None]:
    request = parse(JobRequest, raw)
    spec = specification(request, acceptance)
    guard = idempotency.for_request(request_sha256(request)) if idempotency.is_given else None
    return spec, guard


async def _submit(
    services: Services, spec: JobSpec, guard: IdempotencyGuard | None, caller: Caller
) -> tuple[Job, bool]:
    """Store the job; return it, and whether an earlier request had made it.

    Without an idempotency key it is stored together with others that arrive now. A worker hears of a new one.
    """
    by = services.submitter(caller)
    if guard is None:
        return await services.submit_one(spec, by), False
    once = Repetition(guard, is_submission=True)
    make = partial(submission.submit, specs=[spec], by=by)
    (job,), replayed = await services.submit(by, once.run, make, tenant_id=by.tenant_id)
    if not replayed:
        services.doorbell.ring_for([job])
    return job, replayed


def _read_result(
    session: Session, *, job_id: UUID, tenant_id: UUID
) -> tuple[Job, Result | None, JsonObject | None]:
    job = queries.get_job(session, job_id, tenant_id=tenant_id)
    if job.state not in TERMINAL:
        raise JobNotFinishedError
    has_outputs = job.is_whole and job.state == JobState.COMPLETED
    outputs = outputs_object(session, job.id) if has_outputs else None
    return job, queries.get_result(session, job.id), outputs
