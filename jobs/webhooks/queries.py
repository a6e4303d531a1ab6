"""What people look at: endpoints, deliveries and events of a tenant, or of all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from sqlalchemy import Select, case, func, select
from sqlalchemy.orm import Session, defer

from jobs.database import database_now, paging
from jobs.database.paging import FoundRows, SearchRange
from jobs.database.rows import matches, require
from jobs.models.webhook import WebhookEndpoint, WebhookEvent
from jobs.models.webhook_delivery import WebhookBreaker, WebhookDelivery, WebhookDispatch
from jobs.webhooks.delivery_log import DeliveryFilter

# An event has a destination for each endpoint and one more, and some ten attempts for each, of each replay.
_MAX_ATTEMPTS: Final = 200


@dataclass(frozen=True, slots=True)
class DispatchedEvent:
    """An event, where it goes, and what came of it.

    Attributes:
        dispatches: to each destination.
        endpoints: of those, by id, deleted ones included.
        breakers: of destinations that fail, by the destination's id.
        attempts: newest first, some hundred at most.
        now: when this was read.
    """

    event: WebhookEvent
    dispatches: Sequence[WebhookDispatch]
    endpoints: Mapping[UUID, WebhookEndpoint]
    breakers: Mapping[UUID, WebhookBreaker]
    attempts: Sequence[WebhookDelivery]
    now: datetime

    @property
    def is_open(self) -> bool:
        """Whether there is a delivery yet to come."""
        return any(each.next_attempt_at is not None for each in self.dispatches)


# State and number of attempts of each dispatch of an event, by its id.
DispatchStates = tuple[tuple[UUID, str, int], ...]


def find_endpoint(session: Session, endpoint_id: UUID, *, tenant_id: UUID | None) -> WebhookEndpoint:
    """Read an endpoint of a tenant, or of any, without locking it.

    Raises:
        NotFoundError: there is none, or it is deleted.
    """
    query = _endpoints(tenant_id).where(WebhookEndpoint.id == endpoint_id)
    return require(session, query, kind="webhook endpoint")


def search_endpoints(session: Session, wanted: SearchRange) -> FoundRows[WebhookEndpoint]:
    """Read a page of endpoints."""
    return paging.search(session, _endpoints(wanted.tenant_id), WebhookEndpoint.id, wanted, has_index=True)


def search_deliveries(
    session: Session, which: DeliveryFilter, wanted: SearchRange
) -> FoundRows[WebhookDelivery]:
    """Search for attempts at delivery; indexes find those of an endpoint or an event."""
    named = matches(
        (WebhookDelivery.endpoint_id, which.endpoint_id), (WebhookDelivery.event_id, which.event_id)
    )
    return paging.search(
        session,
        select(WebhookDelivery).where(*which.conditions()),
        WebhookDelivery.id,
        wanted,
        among=[*matches((WebhookDelivery.tenant_id, wanted.tenant_id)), *named],
        has_index=which.is_delivered is None or (wanted.tenant_id is not None and not named),
    )


def types_of(session: Session, deliveries: Sequence[WebhookDelivery]) -> Mapping[UUID, str]:
    """Read the types of these attempts' events, by the event's id."""
    wanted = {each.event_id for each in deliveries}
    query = select(WebhookEvent.id, WebhookEvent.type).where(WebhookEvent.id.in_(wanted))
    return dict(session.execute(query).tuples().all())


def urls_of(session: Session, deliveries: Sequence[WebhookDelivery]) -> Mapping[UUID, str]:
    """Read where these attempts' endpoints are, by the endpoint's id; deleted ones may be missing."""
    wanted = {each.endpoint_id for each in deliveries if each.endpoint_id is not None}
    query = select(WebhookEndpoint.id, WebhookEndpoint.url).where(WebhookEndpoint.id.in_(wanted))
    return dict(session.execute(query).tuples().all())


def read_event(session: Session, event_id: UUID, *, tenant_id: UUID | None) -> DispatchedEvent:
    """Read an event of a tenant, or of any, with its deliveries; not its output.

    Raises:
        NotFoundError: there is none.
    """
    wanted = select(WebhookEvent).where(
        WebhookEvent.id == event_id, *matches((WebhookEvent.tenant_id, tenant_id))
    )
    event = require(session, wanted.options(defer(WebhookEvent.output)), kind="event")
    found = (
        select(WebhookDispatch)
        .where(WebhookDispatch.event_id == event_id)
        .order_by(WebhookDispatch.queued_at)
    )
    dispatches = session.scalars(found).all()
    endpoints = select(WebhookEndpoint).where(
        WebhookEndpoint.id.in_([each.endpoint_id for each in dispatches])
    )
    breakers = select(WebhookBreaker).where(
        WebhookBreaker.destination_id.in_([each.destination_id for each in dispatches])
    )
    attempts = select(WebhookDelivery).where(WebhookDelivery.event_id == event_id)
    return DispatchedEvent(
        event=event,
        dispatches=dispatches,
        endpoints={each.id: each for each in session.scalars(endpoints)},
        breakers={each.destination_id: each for each in session.scalars(breakers)},
        attempts=session.scalars(attempts.order_by(WebhookDelivery.id.desc()).limit(_MAX_ATTEMPTS)).all(),
        now=database_now(session),
    )


def read_dispatch_states(session: Session, event_ids: Sequence[UUID]) -> Mapping[UUID, DispatchStates]:
    """Read what changes of many events of any tenant; omits those that have no destination."""
    rows = session.execute(
        select(
            WebhookDispatch.event_id, WebhookDispatch.id, WebhookDispatch.state, WebhookDispatch.num_attempts
        )
        .where(WebhookDispatch.event_id.in_(event_ids))
        .order_by(WebhookDispatch.id)
    )
    found: dict[UUID, DispatchStates] = {}
    for event_id, *state in rows.tuples():
        found[event_id] = (*found.get(event_id, ()), tuple(state))  # type: ignore[arg-type]  # of three
    return found


class EndpointCondition(NamedTuple):
    """What changes of an endpoint by itself.

    Attributes:
        disabled_reason: None: it is enabled.
        failing_since: None: its last delivery was acknowledged, or none was tried.
        num_failures: in a row.
        paused_until: when deliveries go on; None: they are not paused for now.
    """

    disabled_reason: str | None
    failing_since: datetime | None = None
    num_failures: int = 0
    paused_until: datetime | None = None


def read_conditions(session: Session, endpoint_ids: Sequence[UUID]) -> Mapping[UUID, EndpointCondition]:
    """Read how these endpoints of any tenant are now; omits deleted ones."""
    is_paused = (WebhookBreaker.paused_until > func.clock_timestamp()) & (
        WebhookEndpoint.disabled_reason.is_(None)
    )
    rows = session.execute(
        select(
            WebhookEndpoint.id,
            WebhookEndpoint.disabled_reason,
            WebhookBreaker.failing_since,
            func.coalesce(WebhookBreaker.num_failures, 0),
            case((is_paused, WebhookBreaker.paused_until)),
        )
        .outerjoin(WebhookBreaker, WebhookBreaker.destination_id == WebhookEndpoint.id)
        .where(WebhookEndpoint.id.in_(endpoint_ids), WebhookEndpoint.deleted_at.is_(None))
    )
    return {endpoint_id: EndpointCondition(*condition) for endpoint_id, *condition in rows}


def _endpoints(tenant_id: UUID | None) -> Select[WebhookEndpoint]:
    mine = matches((WebhookEndpoint.tenant_id, tenant_id))
    return select(WebhookEndpoint).where(WebhookEndpoint.deleted_at.is_(None), *mine)
