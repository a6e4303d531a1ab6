"""The list of delivery attempts with what receivers answered, and filters in its address."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final
from uuid import UUID

from fastapi import Request
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.console.error_pages import page_router
from api.console.lists import ListPage, ListQuery, RowList
from api.console.page import render
from api.console.reading import read_for, tenant_names
from api.console.session import Viewer, ViewerDep
from api.http.dependencies import ServicesDep
from jobs import ids
from jobs.models.webhook_delivery import WebhookDelivery
from jobs.webhooks import queries
from jobs.webhooks.delivery_log import DeliveryFilter

router = page_router()

DELIVERIES: Final = "/console/webhooks/deliveries"
OUTCOMES: Final = ("delivered", "failed")
_ATTEMPTS: Final = RowList(
    DELIVERIES,
    ids.DELIVERY,
    filters=("outcome", "endpoint", "event", "tenant"),
    values={"outcome": OUTCOMES},
    ids={"endpoint": ids.ENDPOINT, "event": ids.EVENT},
)


@dataclass(frozen=True, slots=True)
class DeliveryRow:
    """An attempt as pages show it.

    Attributes:
        event: the public id of its event.
        url: of its endpoint; None: the own URL of a job, batch or summary, or a deleted endpoint.
        tenant: its owner's name, for operators.
    """

    delivery: WebhookDelivery
    event: str
    type: str
    endpoint: str | None
    url: str | None
    tenant: str | None

    @property
    def number(self) -> int | None:
        """Number of the attempt, from 1."""
        return self.delivery.attempt_before if self.delivery.attempt is None else self.delivery.attempt


@router.get("/webhooks/deliveries")
async def show_deliveries(request: Request, services: ServicesDep, viewer: ViewerDep) -> Response:
    """Show a page of delivery attempts, newest first."""
    query = _ATTEMPTS.parse(request.query_params)
    page = await read_for(viewer, services, partial(read_page, query=query, viewer=viewer))
    return render(
        request,
        "webhooks/deliveries.html",
        title="Webhook deliveries",
        page=page,
        fields=query.fields,
        outcomes=OUTCOMES,
        links=query.links(next_after=page.next),
    )


def read_page(session: Session, *, query: ListQuery, viewer: Viewer) -> ListPage[DeliveryRow]:
    """Read a page of the list, in a bounded number of rows; raise as `ListQuery.range_for` does."""
    outcome = query.chosen.get("outcome")
    which = DeliveryFilter(
        endpoint_id=query.ids["endpoint"],
        event_id=query.ids["event"],
        is_delivered=None if outcome is None else outcome == "delivered",
    )
    found = queries.search_deliveries(session, which, query.range_for(session, viewer))
    names = tenant_names(session, viewer, [each.tenant_id for each in found.items])
    rows = {each.delivery.id: each for each in rows_of(session, found.items, names)}
    return ListPage(rows, names, found.next, found.is_cut)


def rows_of(
    session: Session, found: Sequence[WebhookDelivery], names: Mapping[UUID, str] | None = None
) -> list[DeliveryRow]:
    """Make the rows that show these attempts; `names` are their owners', for operators."""
    types = queries.types_of(session, found)
    urls = queries.urls_of(session, found)
    return [
        DeliveryRow(
            delivery=each,
            event=ids.event_id(each.event_id),
            type=types.get(each.event_id, ""),
            endpoint=None if each.endpoint_id is None else ids.endpoint_id(each.endpoint_id),
            url=None if each.endpoint_id is None else urls.get(each.endpoint_id),
            tenant=names.get(each.tenant_id) if names and each.tenant_id else None,
        )
        for each in found
    ]
