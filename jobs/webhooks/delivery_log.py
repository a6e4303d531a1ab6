"""The log of delivery attempts, as tenants read it."""

from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import ColumnElement, literal_column, select
from sqlalchemy.orm import Session

from jobs.database import paging
from jobs.database.paging import Page, Range
from jobs.database.rows import matches
from jobs.models.webhook import WebhookEvent
from jobs.models.webhook_delivery import WebhookDelivery


@dataclass(frozen=True, slots=True)
class DeliveryFilter:
    """Which attempts to list; None leaves a field open.

    Attributes:
        is_delivered: acknowledged attempts, or failed ones.
    """

    endpoint_id: UUID | None = None
    event_id: UUID | None = None
    is_delivered: bool | None = None

    def conditions(self) -> list[ColumnElement[bool]]:
        """Return the filter as SQL conditions."""
        found = matches(
            (WebhookDelivery.endpoint_id, self.endpoint_id), (WebhookDelivery.event_id, self.event_id)
        )
        if self.is_delivered is not None:
            # Literals, so that Postgres can use the partial indexes.
            delivered: ColumnElement[str] = literal_column("'delivered'")
            is_so = WebhookDelivery.outcome == delivered
            found.append(is_so if self.is_delivered else WebhookDelivery.outcome != delivered)
        return found


@dataclass(frozen=True, slots=True)
class LoggedDelivery:
    """A delivery attempt and the type of its event."""

    delivery: WebhookDelivery
    event_type: str


def list_deliveries(session: Session, which: DeliveryFilter, wanted: Range) -> Page[LoggedDelivery]:
    """List the tenant's attempts that match.

    Raises:
        InvalidRequestError: the page starts after an attempt that is not the tenant's.
    """
    query = (
        select(WebhookDelivery, WebhookEvent.type)
        .join(WebhookEvent, WebhookEvent.id == WebhookDelivery.event_id)
        .where(WebhookDelivery.tenant_id == wanted.tenant_id, *which.conditions())
    )
    query = paging.within(
        session, query, (WebhookDelivery.id, WebhookDelivery.tenant_id), wanted, kind="webhook delivery"
    )
    return paging.cut([LoggedDelivery(*row) for row in session.execute(query)], wanted)
