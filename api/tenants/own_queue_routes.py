"""The caller's own queue over HTTP: get, pause, drain, resume."""

from typing import Any
from uuid import UUID

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from sqlalchemy.orm import Session

from api.http.dependencies import CallerDep, ServicesDep, TenantDep
from api.http.halts import HaltRequest, ResumeRequest, operator_of, read_halt, read_resume
from api.http.openapi import json_body, responses
from api.runtime.api_keys import Caller
from api.runtime.services import Services
from api.tenants.queue_replies import QueueStateReply, queue_object
from jobs import telemetry
from jobs.doorbell import INFERENCE
from jobs.models import Tenant
from jobs.scheduling import halts
from jobs.states.halt import HaltKind
from jobs.tenants.keys import Scope

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
    "/v1/queue/pause",
    summary="Pause your queue",
    responses=_CHANGED,
    openapi_extra=json_body(HaltRequest),
)
async def pause_own_queue(request: Request, services: ServicesDep, caller: CallerDep) -> JSONResponse:
    """Start none of your jobs until the queue is resumed; running ones go on, new ones are accepted.

    Completion windows and interactive callers' timeouts go on. 409 while an operator has paused it.
    """
    return await _halt(request, services, caller, HaltKind.PAUSE)


@router.post(
    "/v1/queue/drain",
    summary="Drain your queue",
    responses=_CHANGED,
    openapi_extra=json_body(HaltRequest),
)
async def drain_own_queue(request: Request, services: ServicesDep, caller: CallerDep) -> JSONResponse:
    """Pause it, and report `drained` once none of your jobs runs any more."""
    return await _halt(request, services, caller, HaltKind.DRAIN)


@router.post(
    "/v1/queue/resume",
    summary="Resume your queue",
    responses=_CHANGED,
    openapi_extra=json_body(ResumeRequest),
)
async def resume_own_queue(request: Request, services: ServicesDep, caller: CallerDep) -> JSONResponse:
    """Let your jobs start again; what an operator paused, only an operator resumes (409)."""
    asked = await read_resume(request)

    def resume(session: Session) -> dict[str, Any]:
        row = _own(session, caller)
        halts.resume_queue(session, row.id)
        return queue_object(session, row)

    found = await services.transactions.run_as_operator(resume)
    services.doorbell.ring(INFERENCE)
    _log(telemetry.QUEUE_RESUMED, caller, kind=None, reason=asked.reason)
    return JSONResponse(found)


async def _halt(request: Request, services: Services, caller: Caller, kind: HaltKind) -> JSONResponse:
    asked = await read_halt(request)

    def halt(session: Session) -> dict[str, Any]:
        row = _own(session, caller)
        halts.halt_queue(session, row.id, kind, reason=asked.reason, by=operator_of(caller))
        return queue_object(session, row)

    found = await services.transactions.run_as_operator(halt)
    _log(telemetry.QUEUE_HALTED, caller, kind=kind.value, reason=asked.reason)
    return JSONResponse(found)


def _own(session: Session, caller: Caller) -> Tenant:
    """Lock the caller's tenant; raise ConflictError if only an operator may change its halt."""
    tenant_id: UUID = caller.tenant_id
    return halts.lock_queue(session, tenant_id, may_override=Scope.OPERATOR in caller.scopes)


def _log(event: str, caller: Caller, *, kind: str | None, reason: str | None) -> None:
    telemetry.logger().info(event, tenant_id=str(caller.tenant_id), kind=kind, key=caller.key, reason=reason)
