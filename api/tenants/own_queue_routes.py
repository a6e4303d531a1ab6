"""The caller's own queue over HTTP: get, pause, drain, resume."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from sqlalchemy.orm import Session

from api.http.dependencies import CallerDep, ServicesDep, TenantDep
from api.http.halts import HaltRequest, ResumeRequest
from api.http.openapi import json_body, responses
from api.tenants import queue_orders
from api.tenants.queue_orders import own_of
from api.tenants.queue_replies import QueueStateReply, queue_object
from jobs.models import Tenant
from jobs.states.halt import HaltKind

router = APIRouter(tags=["tenants"])

_CHANGED = responses(200, QueueStateReply, "The queue", 400, 409, 413, 503)


@router.get(
    "/v1/queue",
    summary="Get whether your jobs start",
    responses=responses(200, QueueStateReply, "The queue", 503),
)
async def get_own_queue(services: ServicesDep, tenant_id: TenantDep) -> JSONResponse:
    """Get whether your jobs start, and who paused them if they do not."""

    def read(session: Session) -> dict[str, Any]:
        return queue_object(session, session.get_one(Tenant, tenant_id))

    return JSONResponse(await services.transactions.run_across(read))


@router.post(
    "/v1/queue/pause", summary="Pause your queue", responses=_CHANGED, openapi_extra=json_body(HaltRequest)
)
async def pause_own_queue(request: Request, services: ServicesDep, caller: CallerDep) -> JSONResponse:
    """Start none of your jobs until the queue is resumed; running ones go on, new ones are accepted.

    Completion windows and interactive callers' timeouts go on. 409 while an operator has paused it.
    """
    return await queue_orders.halt(request, services, caller, own_of(caller), HaltKind.PAUSE)


@router.post(
    "/v1/queue/drain", summary="Drain your queue", responses=_CHANGED, openapi_extra=json_body(HaltRequest)
)
async def drain_own_queue(request: Request, services: ServicesDep, caller: CallerDep) -> JSONResponse:
    """Pause it, and report `drained` once none of your jobs runs any more."""
    return await queue_orders.halt(request, services, caller, own_of(caller), HaltKind.DRAIN)


@router.post(
    "/v1/queue/resume",
    summary="Resume your queue",
    responses=_CHANGED,
    openapi_extra=json_body(ResumeRequest),
)
async def resume_own_queue(request: Request, services: ServicesDep, caller: CallerDep) -> JSONResponse:
    """Let your jobs start again; what an operator paused, only an operator resumes (409)."""
    return await queue_orders.resume(request, services, caller, own_of(caller))
