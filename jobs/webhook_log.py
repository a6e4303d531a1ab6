"""The log of deliveries, as tenants read it."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from jobs.errors import InvalidRequestError
from jobs.webhook_models import WebhookDelivery, WebhookEvent


@dataclass(frozen=True, slots=True)
class DeliveryFilter:
    """Which tries are meant; None leaves a field open.

    Attributes:
        is_delivered: those that were acknowledged, or those that were not.
    """

    endpoint_id: UUID | None = None
    event_id: UUID | None = None
    is_delivered: bool | None = None


@dataclass(frozen=True, slots=True)
class LoggedDelivery:
    """A try, and the type of the event that was told."""

    delivery: WebhookDelivery
    event_type: str


def list_deliveries(
    session: Session, which: DeliveryFilter, *, tenant_id: UUID, after: UUID | None, limit: int
) -> tuple[Sequence[LoggedDelivery], bool]:
    """The tenant's tries, newest first, from the one behind `after` on; and whether there are more.

    Raises:
        InvalidRequestError: `after` is none of the tenant's.
    """
    query = (
        select(WebhookDelivery, WebhookEvent.type)
        .join(WebhookEvent, WebhookEvent.id == WebhookDelivery.event_id)
        .where(WebhookDelivery.tenant_id == tenant_id)
    )
    if after is not None:
        known = select(WebhookDelivery.id).where(
            WebhookDelivery.id == after, WebhookDelivery.tenant_id == tenant_id
        )
        if session.scalar(known) is None:
            raise InvalidRequestError("after names no webhook delivery of yours", param="after")
        query = query.where(WebhookDelivery.id < after)
    if which.endpoint_id is not None:
        query = query.where(WebhookDelivery.endpoint_id == which.endpoint_id)
    if which.event_id is not None:
        query = query.where(WebhookDelivery.event_id == which.event_id)
    if which.is_delivered is not None:
        query = query.where((WebhookDelivery.outcome == "delivered") == which.is_delivered)
    found = session.execute(query.order_by(WebhookDelivery.id.desc()).limit(limit + 1)).all()
    return [LoggedDelivery(delivery, kind) for delivery, kind in found[:limit]], len(found) > limit
