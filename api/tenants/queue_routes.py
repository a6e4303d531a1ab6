"""Tenants' queues over HTTP, for operators: pause, drain, resume."""

from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from sqlalchemy.orm import Session

from api.http.dependencies import CallerDep, ServicesDep
from api.http.halts import HaltRequest, ResumeRequest
from api.http.identifiers import TenantNameDep
from api.http.openapi import json_body, responses
from api.tenants import queue_orders
from api.tenants.queue_replies import QueueStateReply, queue_object
from jobs import tenants
from jobs.states.halt import HaltKind

router = APIRouter(tags=["tenants"])

_CHANGED = responses(200, QueueStateReply, "The queue", 400, 404, 409, 413, 503)


@router.get(
    "/v1/tenants/{tenant}/queue",
    summary="Get whether a tenant's jobs start",
    responses=responses(200, QueueStateReply, "The queue", 404, 503),
)
async def get_queue(tenant: TenantNameDep, services: ServicesDep) -> JSONResponse:
    """Get whether the tenant's jobs start. Needs the scope `operator`, as all of these."""

    def read(session: Session) -> dict[str, Any]:
        return queue_object(session, tenants.find(session, tenant))

    return JSONResponse(await services.transactions.run_across(read))


@router.post(
    "/v1/tenants/{tenant}/queue/pause",
    summary="Pause a tenant's queue",
    responses=_CHANGED,
    openapi_extra=json_body(HaltRequest),
)
async def pause_queue(
    request: Request, tenant: TenantNameDep, services: ServicesDep, caller: CallerDep
) -> JSONResponse:
    """Start none of its jobs until it is resumed; running ones go on.

    Its jobs are accepted and wait with the reason `queue_paused`, and hold up no other tenant's. Completion
    windows and interactive callers' timeouts go on.
    """
    find = partial(tenants.find, text=tenant)
    return await queue_orders.halt(request, services, caller, find, HaltKind.PAUSE)


@router.post(
    "/v1/tenants/{tenant}/queue/drain",
    summary="Drain a tenant's queue",
    responses=_CHANGED,
    openapi_extra=json_body(HaltRequest),
)
async def drain_queue(
    request: Request, tenant: TenantNameDep, services: ServicesDep, caller: CallerDep
) -> JSONResponse:
    """Pause it, and report `drained` once none of its jobs runs any more."""
    find = partial(tenants.find, text=tenant)
    return await queue_orders.halt(request, services, caller, find, HaltKind.DRAIN)


@router.post(
    "/v1/tenants/{tenant}/queue/resume",
    summary="Resume a tenant's queue",
    responses=_CHANGED,
    openapi_extra=json_body(ResumeRequest),
)
async def resume_queue(
    request: Request, tenant: TenantNameDep, services: ServicesDep, caller: CallerDep
) -> JSONResponse:
    """Let its jobs start again; nothing changes if it was not paused. It earned no credit meanwhile."""
    return await queue_orders.resume(request, services, caller, partial(tenants.find, text=tenant))
