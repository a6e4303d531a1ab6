"""The list of engines: whether each starts jobs, and how full it is."""

from typing import Final
from urllib.parse import quote

from fastapi import Request
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.console.engines.activity import EngineActivity, read_activities
from api.console.engines.adapters import AdapterRow, read_adapters
from api.console.error_pages import page_router
from api.console.page import render
from api.console.session import ViewerDep
from api.http.dependencies import ServicesDep
from jobs.engines import workers
from jobs.models import Worker
from jobs.states.halt import state_of

router = page_router()

LIST: Final = "/console/engines"


@router.get("/engines")
async def show_engines(request: Request, services: ServicesDep, viewer: ViewerDep) -> Response:
    """Show every engine, by name, and the adapters of their models."""
    served = services.settings.engine.model
    tenant_id = None if viewer.is_operator else viewer.caller.tenant_id

    def read(session: Session) -> tuple[list[EngineActivity], list[Worker], list[AdapterRow]]:
        adapters = read_adapters(session, served=served, tenant_id=tenant_id)
        refused = list(workers.refused(session).values()) if viewer.is_operator else []
        return list(read_activities(session, most=0).values()), refused, adapters

    found, refused, adapters = await services.transactions.run_across(read)
    rows = [(each, halt_state(each), address_of(each.name)) for each in found]
    return render(request, "engines.html", title="Engines", rows=rows, refused=refused, adapters=adapters)


def halt_state(engine: EngineActivity) -> str:
    """Say whether the engine starts jobs, by its operators' orders."""
    return state_of(engine.halt.kind if engine.halt else None, num_running=len(engine.held))


def address_of(name: str) -> str:
    """Return the address of an engine's page."""
    return f"{LIST}/{quote(name, safe='')}"
