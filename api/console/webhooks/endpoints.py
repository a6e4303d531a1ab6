"""Endpoints: the list, and one with its state and latest deliveries; switch it on and off, send a test."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final
from uuid import UUID

from fastapi import Request
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.console import formats, live
from api.console.error_pages import page_router
from api.console.forms import ChangeDep
from api.console.lists import WINDOW, ListQuery, RowList
from api.console.live import LiveDep
from api.console.page import redirect, render, render_part
from api.console.reading import read_for, tenant_names, tenant_of
from api.console.session import Viewer, ViewerDep
from api.console.webhooks.deliveries import DELIVERIES, DeliveryRow, rows_of
from api.console.webhooks.event import address_of as address_of_event
from api.http.dependencies import ServicesDep
from api.http.identifiers import EndpointIdDep
from api.webhooks import verbs
from jobs import ids
from jobs.database import database_now
from jobs.database.paging import SearchRange
from jobs.errors import NotFoundError
from jobs.models.webhook import WebhookEndpoint
from jobs.webhooks import queries
from jobs.webhooks.delivery_log import DeliveryFilter
from jobs.webhooks.endpoints import EndpointSpec
from jobs.webhooks.queries import EndpointCondition

router = page_router()

LIST: Final = "/console/webhooks"
_ENDPOINTS: Final = RowList(LIST, ids.ENDPOINT, filters=())
_LATEST: Final = 20  # deliveries on the page of an endpoint; their list has the others


@dataclass(frozen=True, slots=True)
class EndpointRow:
    """An endpoint as pages show it.

    Attributes:
        tenant: its owner's name, for operators.
        condition: whether it is enabled, and how it fails.
        now: of the database.
    """

    id: str
    endpoint: WebhookEndpoint
    tenant: str | None
    condition: EndpointCondition
    now: datetime


@dataclass(frozen=True, slots=True)
class EndpointPage:
    """An endpoint and its latest deliveries."""

    row: EndpointRow
    deliveries: Sequence[DeliveryRow]


@router.get("/webhooks")
async def show_endpoints(request: Request, services: ServicesDep, viewer: ViewerDep) -> Response:
    """Show a page of endpoints, newest first."""
    query = _ENDPOINTS.parse(request.query_params)
    rows, next_after = await read_for(viewer, services, partial(read_page, query=query, viewer=viewer))
    return render(
        request,
        "webhooks/endpoints.html",
        title="Webhooks",
        rows=rows,
        deliveries_address=DELIVERIES,
        links=query.links(next_after=next_after, is_live=bool(rows)),
    )


@router.get("/webhooks/live")
async def follow_endpoints(
    request: Request, services: ServicesDep, viewer: ViewerDep, watched: LiveDep
) -> Response:
    """Stream what changes of the page's endpoints."""
    query = _ENDPOINTS.parse(request.query_params)
    with services.event_streams.opening(viewer.caller, session=viewer.token) as stream:
        rows, _ = await read_for(viewer, services, partial(read_page, query=query, viewer=viewer))

        def render_row(endpoint_id: UUID, condition: EndpointCondition) -> str:
            name = ids.endpoint_id(endpoint_id)
            return render_part(request, "webhooks/row_live.html", id=name, now=condition)

        return live.respond(stream, watched.endpoints, [each.endpoint.id for each in rows], render_row)


@router.get("/webhooks/endpoints/{endpoint_id}/live")
async def follow_endpoint(
    request: Request,
    endpoint_id: EndpointIdDep,
    services: ServicesDep,
    viewer: ViewerDep,
    watched: LiveDep,
    seen: str = "",
) -> Response:
    """Reload the page whenever the endpoint changes by itself from what it has `seen`."""
    with services.event_streams.opening(viewer.caller, session=viewer.token) as stream:
        read = partial(read_endpoint, endpoint_id=endpoint_id, viewer=viewer)
        found = await read_for(viewer, services, read)
        shown = [seen or live.fingerprint(found.row.condition)]

        def render_change(_: UUID, condition: EndpointCondition) -> str | None:
            if shown == [live.fingerprint(condition)]:
                return None
            shown[:] = [live.fingerprint(condition)]
            return render_part(request, "reload_live.html", address=address_of(endpoint_id), part="#endpoint")

        return live.respond(stream, watched.endpoints, [endpoint_id], render_change)


@router.get("/webhooks/endpoints/{endpoint_id}")
async def show_endpoint(
    request: Request, endpoint_id: EndpointIdDep, services: ServicesDep, viewer: ViewerDep
) -> Response:
    """Show the endpoint and its latest deliveries."""
    found = await read_for(viewer, services, partial(read_endpoint, endpoint_id=endpoint_id, viewer=viewer))
    endpoint = found.row.endpoint
    return render(
        request,
        "webhooks/endpoint.html",
        title=f"Endpoint {found.row.id[:17]}…",
        row=found.row,
        endpoint=endpoint,
        deliveries=found.deliveries,
        is_own=endpoint.tenant_id == viewer.caller.tenant_id,
        address=address_of(endpoint_id),
        live_address=f"{address_of(endpoint_id)}/live?seen={live.fingerprint(found.row.condition)}",
        deliveries_address=DELIVERIES + formats.query({"endpoint": found.row.id}),
    )


@router.post("/webhooks/endpoints/{endpoint_id}/test")
async def send_test(
    endpoint_id: EndpointIdDep, services: ServicesDep, viewer: ViewerDep, _form: ChangeDep
) -> Response:
    """Send a test event to the endpoint, and show what comes of it."""
    event_id = await verbs.send_test(services, endpoint_id, tenant_id=viewer.caller.tenant_id)
    return redirect(address_of_event(event_id), done="The test event is on its way.")


@router.post("/webhooks/endpoints/{endpoint_id}/enable")
async def enable_endpoint(
    endpoint_id: EndpointIdDep, services: ServicesDep, viewer: ViewerDep, _form: ChangeDep
) -> Response:
    """Send events to the endpoint again, from now on."""
    spec = EndpointSpec(is_enabled=True)
    await verbs.update(services, endpoint_id, spec, tenant_id=viewer.caller.tenant_id)
    return redirect(address_of(endpoint_id), done="The endpoint gets events from now on.")


@router.post("/webhooks/endpoints/{endpoint_id}/disable")
async def disable_endpoint(
    endpoint_id: EndpointIdDep, services: ServicesDep, viewer: ViewerDep, _form: ChangeDep
) -> Response:
    """Send nothing to the endpoint until someone enables it."""
    spec = EndpointSpec(is_enabled=False)
    await verbs.update(services, endpoint_id, spec, tenant_id=viewer.caller.tenant_id)
    return redirect(address_of(endpoint_id), done="The endpoint gets nothing until it is enabled.")


def read_page(session: Session, *, query: ListQuery, viewer: Viewer) -> tuple[list[EndpointRow], UUID | None]:
    """Read a page of the endpoints that the viewer sees, and after which it goes on; None: it is the last."""
    found = queries.search_endpoints(session, query.range_for(session, viewer))
    return _rows(session, found.items, viewer), found.next


def read_endpoint(session: Session, *, endpoint_id: UUID, viewer: Viewer) -> EndpointPage:
    """Read the endpoint and its latest deliveries.

    Raises:
        NotFoundError: the viewer sees no such endpoint.
    """
    endpoint = queries.find_endpoint(session, endpoint_id, tenant_id=tenant_of(viewer))
    wanted = SearchRange(endpoint.tenant_id, after=None, limit=_LATEST, window=WINDOW)
    latest = queries.search_deliveries(session, DeliveryFilter(endpoint_id=endpoint_id), wanted)
    rows = _rows(session, [endpoint], viewer)
    if not rows:
        raise NotFoundError("There is no such endpoint.")
    return EndpointPage(rows[0], rows_of(session, latest.items))


def _rows(session: Session, found: Sequence[WebhookEndpoint], viewer: Viewer) -> list[EndpointRow]:
    names = tenant_names(session, viewer, [each.tenant_id for each in found])
    conditions = queries.read_conditions(session, [each.id for each in found])
    now = database_now(session)
    return [
        EndpointRow(ids.endpoint_id(each.id), each, names.get(each.tenant_id), conditions[each.id], now)
        for each in found
        if each.id in conditions  # not deleted since
    ]


def address_of(endpoint_id: UUID) -> str:
    """Return the address of the endpoint's page."""
    return f"{LIST}/endpoints/{ids.endpoint_id(endpoint_id)}"
