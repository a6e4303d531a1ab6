"""The attempts of a job over HTTP: each of its runs, and how it ended."""

from functools import partial
from typing import Any
from uuid import UUID

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from sqlalchemy.orm import Session

from api.http.dependencies import CallerDep, ServicesDep
from api.http.identifiers import JobIdDep
from api.http.openapi import responses
from api.http.replies import page
from api.jobs.replies import AttemptListReply
from jobs import ids, queries
from jobs.engines import attempts
from jobs.engines.attempts import Run
from jobs.tenants.keys import Scope
from jobs.views import optional_rfc3339, rfc3339

router = APIRouter(tags=["jobs"])


@router.get(
    "/v1/jobs/{job_id}/attempts",
    summary="List a job's attempts",
    responses=responses(200, AttemptListReply, "All that are kept, on one page", 404, 503),
)
async def list_attempts(job_id: JobIdDep, services: ServicesDep, caller: CallerDep) -> JSONResponse:
    """List the runs of the job, oldest first: the present one last, and of many the newest 100 before it."""
    # Read first: a run that ends meanwhile is in both.
    find = partial(attempts.present, job_id=job_id, tenant_id=caller.tenant_id)
    present = await services.transactions.run_across(find)
    over = await services.transact(_read, job_id=job_id, tenant_id=caller.tenant_id)
    runs = {run.lease_id: run for run in (*([present] if present else []), *over)}
    shows_worker = Scope.OPERATOR in caller.scopes
    data = [_attempt_object(runs[each], shows_worker=shows_worker) for each in sorted(runs)]
    return JSONResponse(page(data, has_more=False))


def _read(session: Session, *, job_id: UUID, tenant_id: UUID) -> list[Run]:
    return attempts.of_job(session, queries.get_job(session, job_id, tenant_id=tenant_id).id)


def _attempt_object(run: Run, *, shows_worker: bool) -> dict[str, Any]:
    return {
        "id": ids.ATTEMPT.format(run.lease_id),
        "object": "attempt",
        "engine": run.engine_name,
        "worker": run.worker if shows_worker else None,
        "outcome": run.outcome,
        "error_code": run.error_code,
        "started_at": rfc3339(run.started_at),
        "first_token_at": optional_rfc3339(run.first_token_at),
        "ended_at": optional_rfc3339(run.ended_at),
        "prompt_tokens": run.prompt_tokens,
        "cached_tokens": run.cached_tokens,
        "completion_tokens": run.completion_tokens,
        "blocks": run.blocks,
    }
