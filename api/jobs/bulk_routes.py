"""Many jobs in one request: submit them as lines, or cancel them by filter."""

from collections.abc import Sequence
from functools import partial
from uuid import UUID

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from sqlalchemy import ColumnElement
from sqlalchemy.orm import Session

from api.http.body import parse, read_body, read_lines
from api.http.dependencies import CallerDep, ServicesDep, TenantDep
from api.http.idempotency import IdempotencyDep
from api.http.openapi import json_body, lines_body, responses
from api.jobs import bulk
from api.jobs.replies import BulkReply, CancelReply
from api.jobs.requests import CancelRequest, JobRequest
from api.runtime.database import Transactions
from jobs import audit, lifecycle
from jobs.audit import Action
from jobs.database import database_now
from jobs.errors import InvalidRequestError
from jobs.models import Job
from jobs.queries import JobFilter

router = APIRouter(tags=["many jobs"])


@router.post(
    "/v1/jobs/bulk",
    summary="Submit many jobs",
    responses=responses(200, BulkReply, "The outcome of each line", 400, 409, 413, 503),
    openapi_extra=lines_body(JobRequest),
)
async def create_jobs(
    request: Request, services: ServicesDep, caller: CallerDep, idempotency: IdempotencyDep
) -> JSONResponse:
    """Submit one job per line of JSON; an invalid line affects no other.

    Lines are stored as they arrive, in slices of a few hundred. If the connection breaks, the slices stored
    before remain: send the same lines again with the same Idempotency-Key, and only the missing ones become
    jobs.
    """
    limits = services.settings.api
    lines = read_lines(request, max_line_bytes=limits.max_body_bytes, max_bytes=limits.max_bulk_bytes)
    report = await bulk.submit_lines(services, lines, caller=caller, idempotency=idempotency)
    return JSONResponse(
        {
            "object": "bulk",
            "accepted": len(report.ids),
            "rejected": report.num_rejected,
            "ids": report.ids,
            "errors": report.errors,
        }
    )


@router.post(
    "/v1/jobs/cancel",
    summary="Cancel many jobs",
    responses=responses(200, CancelReply, "The number of cancelled jobs", 400, 413, 503),
    openapi_extra=json_body(CancelRequest),
)
async def cancel_jobs(request: Request, services: ServicesDep, tenant_id: TenantDep) -> JSONResponse:
    """Cancel every unfinished job that matches all filters; give at least one.

    Jobs submitted during the call are not cancelled.
    """
    raw = await read_body(request, max_bytes=services.settings.api.max_body_bytes)
    asked = await services.compute(len(raw), parse, CancelRequest, raw)
    which = JobFilter(
        state=asked.state, task=asked.task, custom_id=asked.custom_id, metadata=dict(asked.metadata or {})
    ).conditions()
    if not which:
        raise InvalidRequestError("Give at least one of state, task, custom_id and metadata.")
    num_cancelled = await cancel_matching(services.transactions, which, tenant_id=tenant_id)
    return JSONResponse({"object": "cancellation", "cancelled": num_cancelled})


async def cancel_matching(
    transactions: Transactions, which: Sequence[ColumnElement[bool]], *, tenant_id: UUID
) -> int:
    """Cancel the tenant's matching jobs in slices, and return their number.

    Only jobs that exist at the start count: otherwise it would run for as long as others submit jobs.
    """
    began = await transactions.run(database_now, tenant_ids=[tenant_id])
    conditions = [*which, Job.created_at <= began]
    cancel_some = partial(cancel_some_jobs, conditions=conditions, tenant_id=tenant_id)
    num_cancelled = 0
    while num_more := await transactions.run(cancel_some, tenant_ids=[tenant_id]):
        num_cancelled += num_more
    return num_cancelled


def cancel_some_jobs(session: Session, conditions: Sequence[ColumnElement[bool]], *, tenant_id: UUID) -> int:
    """Cancel some of the tenant's jobs as `lifecycle.cancel_where` does, and log how many."""
    number = lifecycle.cancel_where(session, conditions, tenant_id=tenant_id)
    if number:
        audit.note(session, Action.JOBS_CANCEL, None, tenant_id=tenant_id, num_jobs=number)
    return number
