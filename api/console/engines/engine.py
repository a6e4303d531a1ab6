"""One engine: its packing as a picture that moves, what it has, and what follows."""

from datetime import timedelta
from functools import partial
from typing import Any, Final
from uuid import UUID

from fastapi import Request
from starlette.responses import Response

from api.console import formats, live
from api.console.engines.activity import EngineActivity, engine_id, read_activities
from api.console.engines.engines import address_of, halt_state
from api.console.engines.picture import SPANS, Shelves, draw, how_it_is
from api.console.engines.plan import plan_of
from api.console.error_pages import page_router
from api.console.live import LiveDep, LivePages
from api.console.page import render, render_part
from api.console.reading import tenant_of
from api.console.session import Viewer, ViewerDep
from api.http.dependencies import ServicesDep
from api.http.errors import status_of
from api.http.event_responses import EventResponse
from api.http.identifiers import EngineNameDep
from api.runtime.services import Services
from jobs.errors import InvalidRequestError, NotFoundError
from jobs.forecast.queue_position import QueueForecast

router = page_router()

_SPAN: Final = "quarter"
# Rows of the tables beside the picture.
_SHOWN_NOW: Final = 64
_SHOWN: Final = 10


@router.get("/engines/{engine:path}/live")
async def follow_engine(
    request: Request,
    engine: EngineNameDep,
    services: ServicesDep,
    viewer: ViewerDep,
    watched: LiveDep,
    span: str = _SPAN,
) -> Response:
    """Stream the part of the page that moves."""
    past = _parse_span(span)
    await _read(services, engine)
    key = engine_id(engine)
    # A tenant's viewers see the same; an operator's page has forms with the token of the session.
    whose = viewer.token if viewer.is_operator else viewer.caller.tenant_id
    with services.event_streams.opening(viewer.caller, session=viewer.token) as stream:

        async def render_picture(_: UUID, activity: EngineActivity) -> str:
            queue = await watched.forecasts.of(activity)

            def draw_anew() -> str:
                shown = _moving(activity, queue, watched, viewer, past=past)
                return render_part(request, "engine_live.html", **shown)

            return watched.pictures.html((key, past, whose), activity, draw_anew)

        return EventResponse(stream, live.follow_each(watched.engines, [key], render_picture))


@router.get("/engines/{engine:path}")
async def show_engine(
    request: Request,
    engine: EngineNameDep,
    services: ServicesDep,
    viewer: ViewerDep,
    watched: LiveDep,
    span: str = _SPAN,
) -> Response:
    """Show the engine; operators halt and resume it here."""
    return await render_engine(request, engine, services, viewer, watched, span=span)


async def render_engine(
    request: Request,
    name: str,
    services: Services,
    viewer: Viewer,
    watched: LivePages,
    *,
    span: str = _SPAN,
    error: InvalidRequestError | None = None,
    filled: str = "",
) -> Response:
    """Render the page, after a refused form with the error and what was filled in."""
    past = _parse_span(span)
    found = await _read(services, name)
    queue = await watched.forecasts.of(found)
    address = address_of(name)
    fields = {"span": None if span == _SPAN else span}
    return render(
        request,
        "engine.html",
        title=f"Engine {name}",
        status=status_of(error) if error else 200,
        problem=error and error.message,
        filled=filled,
        spans=[(key, words, address + formats.query({"span": key})) for key, (words, _) in SPANS.items()],
        span=span,
        live_address=f"{address}/live{formats.query(fields)}",
        **_moving(found, queue, watched, viewer, past=past),
    )


def _moving(
    engine: EngineActivity,
    queue: QueueForecast | None,
    watched: LivePages,
    viewer: Viewer,
    *,
    past: timedelta,
) -> dict[str, Any]:
    """Make what the moving part shows."""
    plan = plan_of(engine, queue)
    shelves = watched.shelves.get(engine.name)
    if shelves is None or not shelves.fits(engine):
        shelves = watched.shelves[engine.name] = Shelves.of(engine)
    own = tenant_of(viewer)
    held = engine.held
    return {
        "engine": engine,
        "address": address_of(engine.name),
        "state_of": halt_state(engine),
        "picture": draw(engine, plan, shelves, span=past, own=own),
        "plan": plan,
        "own": own,
        "now": held[:_SHOWN_NOW],
        "following": plan.following[:_SHOWN],
        "over": [bar for bar in engine.newest_over if own in (None, bar.tenant_id)][:_SHOWN],
        "how_it_is": how_it_is,
    }


async def _read(services: Services, name: str) -> EngineActivity:
    """Read the engine; of other tenants' jobs it shows their size, and when they read and run.

    Raises:
        NotFoundError: no engine of this name has registered.
    """
    key = engine_id(name)
    found = await services.transactions.run_across(partial(read_activities, wanted=[key]))
    if key not in found:
        raise NotFoundError("There is no such engine.")
    return found[key]


def _parse_span(span: str) -> timedelta:
    if span not in SPANS:
        raise InvalidRequestError("There is no such span of time.", param="span")
    return SPANS[span][1]
