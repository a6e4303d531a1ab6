"""One event: where it goes, what receivers answered; its body when asked for; sent again by a button."""

import json
from functools import partial
from typing import Final
from uuid import UUID

from fastapi import Request
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.console import live
from api.console.error_pages import page_router
from api.console.forms import ChangeDep
from api.console.live import LiveDep
from api.console.page import redirect, render, render_part
from api.console.reading import read_for, tenant_names, tenant_of
from api.console.session import Viewer, ViewerDep
from api.console.subjects import kinds
from api.console.webhooks.deliveries import DeliveryRow, rows_of
from api.http.dependencies import ServicesDep
from api.http.identifiers import EventIdDep
from api.webhooks import verbs
from jobs import ids
from jobs.models.webhook import WebhookEvent
from jobs.webhooks import queries
from jobs.webhooks.queries import DispatchedEvent, DispatchStates

router = page_router()

_EVENTS: Final = "/console/webhooks/events"


@router.get("/webhooks/events/{event_id}")
async def show_event(
    request: Request, event_id: EventIdDep, services: ServicesDep, viewer: ViewerDep, show: str = ""
) -> Response:
    """Show the event; with `show=body` what is sent too."""
    read = partial(_read, event_id=event_id, viewer=viewer)
    found, attempts, tenant = await read_for(viewer, services, read)
    event = found.event
    body = None
    if show == "body" and event.payload is not None:
        body = json.dumps(event.payload, indent=2, ensure_ascii=False)
    address = address_of(event_id)
    return render(
        request,
        "webhooks/event.html",
        title=f"Event {ids.event_id(event_id)[:16]}…",
        id=ids.event_id(event_id),
        found=found,
        event=event,
        tenant=tenant,
        attempts=attempts,
        subject=_subject(event),
        body=body,
        show=show,
        endpoint_ids={each: ids.endpoint_id(each) for each in found.endpoints},
        is_own=event.tenant_id == viewer.caller.tenant_id,
        address=address,
        live_address=f"{address}/live?seen={live.fingerprint(_states(found))}" if found.is_open else None,
    )


@router.get("/webhooks/events/{event_id}/live")
async def follow_event(
    request: Request,
    event_id: EventIdDep,
    services: ServicesDep,
    viewer: ViewerDep,
    watched: LiveDep,
    seen: str = "",
) -> Response:
    """Reload the page whenever a delivery of the event changes from what it has `seen`."""
    with services.event_streams.opening(viewer.caller, session=viewer.token) as stream:
        read = partial(queries.read_event, event_id=event_id, tenant_id=tenant_of(viewer))
        found = await read_for(viewer, services, read)
        shown = [seen or live.fingerprint(_states(found))]
        reload = render_part(request, "reload_live.html", address=address_of(event_id), part="#event")

        def render_change(_: UUID, states: DispatchStates) -> str | None:
            if shown == [live.fingerprint(tuple(sorted(states)))]:
                return None
            shown[:] = [live.fingerprint(tuple(sorted(states)))]
            return reload

        followed = [event_id] if found.is_open else []
        return live.respond(stream, watched.dispatches, followed, render_change, ended=reload)


def _states(found: DispatchedEvent) -> DispatchStates:
    return tuple(sorted((each.id, each.state, each.num_attempts) for each in found.dispatches))


@router.post("/webhooks/events/{event_id}/replay")
async def replay_event(
    event_id: EventIdDep, services: ServicesDep, viewer: ViewerDep, _form: ChangeDep
) -> Response:
    """Send the event again, to its receivers and to endpoints that want its type now."""
    replayed = await verbs.replay_event(services, event_id, tenant_id=viewer.caller.tenant_id)
    if not replayed.num_deliveries:
        return redirect(address_of(event_id), done="No endpoint takes it now.", tone="bad")
    some = "one receiver" if replayed.num_deliveries == 1 else f"{replayed.num_deliveries} receivers"
    return redirect(address_of(event_id), done=f"The event is sent to {some} again.")


def address_of(event_id: UUID) -> str:
    """Return the address of the event's page."""
    return f"{_EVENTS}/{ids.event_id(event_id)}"


def _read(
    session: Session, *, event_id: UUID, viewer: Viewer
) -> tuple[DispatchedEvent, list[DeliveryRow], str | None]:
    """Read the event, its attempts, and for operators its owner's name."""
    found = queries.read_event(session, event_id, tenant_id=tenant_of(viewer))
    names = tenant_names(session, viewer, [found.event.tenant_id])
    return found, rows_of(session, found.attempts), names.get(found.event.tenant_id)


def _subject(event: WebhookEvent) -> tuple[str, str]:
    """Return the address of the pages of what the event is about, and its public id."""
    if event.job_id is not None:
        return "/console/jobs", ids.job_id(event.job_id)
    if event.batch_id is not None:
        return "/console/batches", ids.batch_id(event.batch_id)
    if event.summary_id is not None:
        of = kinds.of_event(event.type)
        return of.address, of.kind.format(event.summary_id)
    return "/console/webhooks/endpoints", ids.endpoint_id(event.endpoint_id) if event.endpoint_id else ""
