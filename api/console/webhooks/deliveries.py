"""The list of delivery attempts with what receivers answered, and filters in its address."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final
from uuid import UUID

from fastapi import Request
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.console import formats
from api.console.error_pages import page_router
from api.console.page import render
from api.console.reading import PAGE, WINDOW, read_for, tenant_names, tenant_of
from api.console.session import Viewer, ViewerDep
from api.http.dependencies import ServicesDep
from api.http.identifiers import parse_optional
from jobs import ids, tenants
from jobs.errors import InvalidRequestError
from jobs.models.webhook_delivery import WebhookDelivery
from jobs.webhooks import queries
from jobs.webhooks.delivery_log import DeliveryFilter

router = page_router()

DELIVERIES: Final = "/console/webhooks/deliveries"
OUTCOMES: Final = ("delivered", "failed")
_NAMES: Final = ("outcome", "endpoint", "event", "tenant")


@dataclass(frozen=True, slots=True)
class DeliveriesQuery:
    """What the address of the list asks for.

    Attributes:
        outcome: one of `OUTCOMES`.
        tenant: its name; only operators may choose. None: all that the viewer sees.
        after: the page goes on after this attempt.
    """

    outcome: str | None = None
    endpoint: str | None = None
    event: str | None = None
    tenant: str | None = None
    after: UUID | None = None

    @property
    def fields(self) -> dict[str, str | None]:
        """The filters as they are in the address, without the place."""
        return {name: getattr(self, name) for name in _NAMES}

    @property
    def filter(self) -> DeliveryFilter:
        """The filters as the domain knows them."""
        return DeliveryFilter(
            endpoint_id=ids.parse_endpoint_id(self.endpoint) if self.endpoint else None,
            event_id=ids.parse_event_id(self.event) if self.event else None,
            is_delivered=None if self.outcome is None else self.outcome == "delivered",
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


@dataclass(frozen=True, slots=True)
class DeliveriesPage:
    """A page of the list.

    Attributes:
        next: the id after which the search goes on; None: there are no more.
        is_cut: the search stopped before it had filled the page.
    """

    rows: Sequence[DeliveryRow]
    next: UUID | None
    is_cut: bool

    @property
    def tenant_names(self) -> Sequence[str]:
        """The owners on this page."""
        return sorted({each.tenant for each in self.rows if each.tenant is not None})


@router.get("/webhooks/deliveries")
async def show_deliveries(request: Request, services: ServicesDep, viewer: ViewerDep) -> Response:
    """Show a page of delivery attempts, newest first."""
    query = parse_query(request.query_params)
    page = await read_for(viewer, services, partial(read_page, query=query, viewer=viewer))
    fields = query.fields
    following = None
    if page.next is not None:
        following = DELIVERIES + formats.query(fields | {"after": ids.delivery_id(page.next)})
    return render(
        request,
        "webhooks/deliveries.html",
        title="Webhook deliveries",
        page=page,
        fields=fields,
        outcomes=OUTCOMES,
        first_address=DELIVERIES + formats.query(fields),
        next_address=following,
        is_first=query.after is None,
    )


def parse_query(given: Mapping[str, str]) -> DeliveriesQuery:
    """Read the filters of an address; empty ones are not chosen.

    Raises:
        InvalidRequestError: a value is none that the form offers.
    """
    chosen = formats.chosen(given, (*_NAMES, "after"))
    if "outcome" in chosen and chosen["outcome"] not in OUTCOMES:
        raise InvalidRequestError("The filter 'outcome' has none of its values.", param="outcome")
    for name, parse in (("endpoint", ids.parse_endpoint_id), ("event", ids.parse_event_id)):
        parse_optional(chosen.get(name), parse, param=name, message=f"There is no such {name}.")
    after = parse_optional(
        chosen.pop("after", None), ids.parse_delivery_id, param="after", message="There is no such page."
    )
    return DeliveriesQuery(after=after, **chosen)


def read_page(session: Session, *, query: DeliveriesQuery, viewer: Viewer) -> DeliveriesPage:
    """Read a page of the list, in a bounded number of rows.

    Raises:
        NotFoundError: there is no tenant of the name in the query, or the viewer may not choose one.
    """
    owner = tenant_of(viewer)
    if query.tenant is not None:
        owner = tenants.named(session, query.tenant).id
    found, following = queries.search_deliveries(
        session, query.filter, tenant_id=owner, after=query.after, limit=PAGE, window=WINDOW
    )
    owners = [each.tenant_id for each in found.items if each.tenant_id is not None]
    names = tenant_names(session, owners) if viewer.is_operator else {}
    is_cut = following is not None and not found.has_more
    return DeliveriesPage(rows_of(session, found.items, names), following, is_cut)


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
