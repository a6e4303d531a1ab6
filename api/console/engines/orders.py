"""Orders to an engine: operators pause, drain and resume it."""

from typing import Annotated

from fastapi import APIRouter, Path, Request
from pydantic import ValidationError
from starlette.responses import Response

from api.console.engines.engine import render_engine
from api.console.engines.engines import address_of
from api.console.error_pages import page_router
from api.console.forms import OperationDep
from api.console.live import LiveDep
from api.console.page import redirect
from api.console.session import ViewerDep
from api.engines import orders
from api.http.dependencies import ServicesDep
from api.http.halts import HaltRequest
from api.http.identifiers import EngineNameDep
from jobs.states.halt import HaltKind
from jobs.validation import from_validation

router: APIRouter = page_router()


@router.post("/engines/{engine:path}/resume")
async def resume_engine(
    engine: EngineNameDep, services: ServicesDep, viewer: ViewerDep, _form: OperationDep
) -> Response:
    """Let the engine start jobs again."""
    await orders.order_resumption(services, viewer.caller, engine)
    return redirect(address_of(engine), done="It starts jobs again.")


@router.post("/engines/{engine:path}/{kind}")
async def halt_engine(
    request: Request,
    engine: EngineNameDep,
    kind: Annotated[HaltKind, Path()],
    services: ServicesDep,
    viewer: ViewerDep,
    watched: LiveDep,
    form: OperationDep,
) -> Response:
    """Start no job on the engine until it is resumed; tenants whose jobs wait read the reason."""
    reason = form.get("reason", "").strip()
    try:
        asked = HaltRequest(reason=reason)
    except ValidationError as error:
        refusal = from_validation(error)
        return await render_engine(request, engine, services, viewer, watched, error=refusal, filled=reason)
    await orders.order_halt(services, viewer.caller, engine, kind, reason=asked.reason)
    return redirect(address_of(engine), done="No more jobs start on it; those that run go on.")
