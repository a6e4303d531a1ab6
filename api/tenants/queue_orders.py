"""Orders to a tenant's queue: halt, resume."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from fastapi import Request
from fastapi.responses import JSONResponse
from sqlalchemy.orm import Session

from api.http.halts import operator_of, read_halt, read_resume
from api.runtime.api_keys import Caller
from api.runtime.services import Services
from api.tenants.queue_replies import queue_object
from jobs import telemetry
from jobs.doorbell import INFERENCE
from jobs.models import Tenant
from jobs.scheduling import halts
from jobs.states.halt import HaltKind
from jobs.tenants.keys import Scope

FindTenant = Callable[[Session], Tenant]


async def halt(
    request: Request, services: Services, caller: Caller, find: FindTenant, kind: HaltKind
) -> JSONResponse:
    """Start none of the jobs of the tenant that `find` returns, which may refuse the caller."""
    asked = await read_halt(request)
    return JSONResponse(await order_halt(services, caller, find, kind, reason=asked.reason))


async def resume(request: Request, services: Services, caller: Caller, find: FindTenant) -> JSONResponse:
    """Let the jobs of the tenant that `find` returns start again."""
    asked = await read_resume(request)
    return JSONResponse(await order_resumption(services, caller, find, reason=asked.reason))


async def order_halt(
    services: Services, caller: Caller, find: FindTenant, kind: HaltKind, *, reason: str
) -> dict[str, Any]:
    """Start none of the tenant's jobs; return its queue."""

    def change(session: Session) -> tuple[UUID, dict[str, Any]]:
        row = find(session)
        halts.halt_queue(session, row.id, kind, reason=reason, by=operator_of(caller))
        return row.id, queue_object(session, row)

    tenant_id, found = await services.transactions.run_as_operator(change)
    ordered = {"tenant_id": str(tenant_id), "kind": kind.value, "key": caller.key, "reason": reason}
    telemetry.logger().info(telemetry.QUEUE_HALTED, **ordered)
    return found


async def order_resumption(
    services: Services, caller: Caller, find: FindTenant, *, reason: str | None = None
) -> dict[str, Any]:
    """Let the tenant's jobs start again; return its queue."""

    def change(session: Session) -> tuple[UUID, dict[str, Any]]:
        row = find(session)
        halts.resume_queue(session, row.id)
        return row.id, queue_object(session, row)

    tenant_id, found = await services.transactions.run_as_operator(change)
    services.doorbell.ring(INFERENCE)
    ordered = {"tenant_id": str(tenant_id), "key": caller.key, "reason": reason}
    telemetry.logger().info(telemetry.QUEUE_RESUMED, **ordered)
    return found


def own_of(caller: Caller) -> FindTenant:
    """Lock the caller's tenant when called; raise ConflictError if only an operator may change its halt."""
    may_override = Scope.OPERATOR in caller.scopes
    return lambda session: halts.lock_queue(session, caller.tenant_id, may_override=may_override)
