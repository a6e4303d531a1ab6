"""Engines over HTTP: list, get, pause, drain, resume."""

from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from sqlalchemy.orm import Session

from api.engines import orders
from api.engines.replies import EngineListReply, RegisteredEngineReply, engine_object
from api.http.dependencies import CallerDep, ServicesDep
from api.http.halts import HaltRequest, ResumeRequest, read_halt, read_resume
from api.http.identifiers import EngineNameDep
from api.http.openapi import json_body, responses
from api.http.replies import page
from api.runtime.api_keys import Caller
from api.runtime.services import Services
from jobs import queries
from jobs.states.halt import HaltKind

router = APIRouter(tags=["engines"])

_ANSWER = responses(200, RegisteredEngineReply, "The engine", 404, 503)
_CHANGED = responses(200, RegisteredEngineReply, "The engine", 400, 404, 413, 503)


@router.get(
    "/v1/engines", summary="List engines", responses=responses(200, EngineListReply, "All engines", 503)
)
async def list_engines(services: ServicesDep) -> JSONResponse:
    """List every engine that ever registered, by name. Needs the scope `operator`, as all of these."""

    def read(session: Session) -> dict[str, Any]:
        return page([engine_object(each) for each in queries.engine_usages(session)], has_more=False)

    return JSONResponse(await services.transactions.run_across(read))


@router.get("/v1/engines/{engine:path}", summary="Get an engine", responses=_ANSWER)
async def get_engine(engine: EngineNameDep, services: ServicesDep) -> JSONResponse:
    """Get whether the engine starts jobs, what it can hold, and what is reserved on it."""
    return JSONResponse(await services.transactions.run_across(partial(orders.read_engine, name=engine)))


@router.post(
    "/v1/engines/{engine:path}/pause",
    summary="Pause an engine",
    responses=_CHANGED,
    openapi_extra=json_body(HaltRequest),
)
async def pause_engine(
    request: Request, engine: EngineNameDep, services: ServicesDep, caller: CallerDep
) -> JSONResponse:
    """Start no job on it until it is resumed; running ones go on.

    Once this answers, no job starts. It outlives restarts of every process. Jobs that no other engine can
    run wait with the reason `engine_paused`.
    """
    return await _halt(request, engine, services, caller, HaltKind.PAUSE)


@router.post(
    "/v1/engines/{engine:path}/drain",
    summary="Drain an engine",
    responses=_CHANGED,
    openapi_extra=json_body(HaltRequest),
)
async def drain_engine(
    request: Request, engine: EngineNameDep, services: ServicesDep, caller: CallerDep
) -> JSONResponse:
    """Pause it, and report `drained` once nothing runs on it any more."""
    return await _halt(request, engine, services, caller, HaltKind.DRAIN)


@router.post(
    "/v1/engines/{engine:path}/resume",
    summary="Resume an engine",
    responses=_CHANGED,
    openapi_extra=json_body(ResumeRequest),
)
async def resume_engine(
    request: Request, engine: EngineNameDep, services: ServicesDep, caller: CallerDep
) -> JSONResponse:
    """Let it start jobs again, which it does at once; nothing changes if it was not paused."""
    asked = await read_resume(request)
    return JSONResponse(await orders.order_resumption(services, caller, engine, reason=asked.reason))


async def _halt(
    request: Request, name: str, services: Services, caller: Caller, kind: HaltKind
) -> JSONResponse:
    asked = await read_halt(request)
    return JSONResponse(await orders.order_halt(services, caller, name, kind, reason=asked.reason))
