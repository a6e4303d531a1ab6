"""Replays: past events delivered again, one to all its destinations or many to one endpoint."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from sqlalchemy import ColumnElement, and_, func, literal, literal_column, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session
from sqlalchemy.sql.dml import ReturningInsert

from jobs import audit, ids
from jobs.audit import Action
from jobs.database import statements
from jobs.database.rows import require
from jobs.errors import ConflictError
from jobs.models.webhook import WebhookEndpoint, WebhookEvent
from jobs.models.webhook_delivery import WebhookDispatch
from jobs.webhooks import fanout

# One call replays no more; its result says where to continue.
MAX_REPLAYED: Final = 50_000
# Of one event to one destination: an outage needs a few, and each costs up to ten attempts and log lines.
MAX_REPLAYS: Final = 100


class ReplayLimitError(ConflictError):
    """The event has reached its limit of replays."""

    code = "replay_limit_exceeded"


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay queued.

    Attributes:
        next_since: where to continue if there is more, otherwise None.
        num_over_limit: deliveries left out because they were already replayed `MAX_REPLAYS` times.
    """

    num_deliveries: int
    next_since: datetime | None = None
    num_over_limit: int = 0


def replay_event(session: Session, event_id: UUID, *, tenant_id: UUID) -> Replayed:
    """Deliver the event again to its destinations and to endpoints that want it now.

    Raises:
        NotFoundError: the tenant has no such event.
        ConflictError: its content was not kept because it had no destination when it happened.
        ReplayLimitError: it was replayed `MAX_REPLAYS` times to each destination.
    """
    query = select(WebhookEvent).where(WebhookEvent.id == event_id, WebhookEvent.tenant_id == tenant_id)
    event = require(session, query, kind="event")
    if event.payload is None:
        raise ConflictError("This event had no destination when it happened, so its content was not kept.")
    disabled = select(WebhookEndpoint.id).where(WebhookEndpoint.disabled_reason.is_not(None))
    again = session.scalars(
        update(WebhookDispatch)
        .where(WebhookDispatch.event_id == event_id, _MAY_BE_REPLAYED)
        .where(WebhookDispatch.endpoint_id.is_(None) | WebhookDispatch.endpoint_id.not_in(disabled))
        .values(_REQUEUED)
        .returning(WebhookDispatch.destination_id)
        .execution_options(synchronize_session=False)
    ).all()
    known = dict(
        session.execute(
            select(WebhookDispatch.destination_id, WebhookDispatch.num_replays >= MAX_REPLAYS).where(
                WebhookDispatch.event_id == event_id, WebhookDispatch.destination_id.not_in(again)
            )
        )
        .tuples()
        .all()
    )
    rows = statements.fetch(session, *fanout.asking_endpoints([tenant_id]))
    endpoints = fanout.endpoints_in(rows)[tenant_id]
    new = [to for to in fanout.subscribed(endpoints, event.type) if to.id not in {*again, *known}]
    num_over_limit = sum(known.values())
    if num_over_limit and not again and not new:
        raise ReplayLimitError(f"An event may be replayed {MAX_REPLAYS} times to each of its destinations.")
    fanout.insert_dispatches(session, ((event_id, to) for to in new))
    named, number = ids.event_id(event_id), len(again) + len(new)
    audit.note(session, Action.EVENT_REPLAY, named, tenant_id=tenant_id, num_deliveries=number)
    return Replayed(number, num_over_limit=num_over_limit)


def replay_since(session: Session, endpoint: WebhookEndpoint, *, since: datetime) -> Replayed:
    """Deliver every event since then that the endpoint's filter accepts.

    Events that were delivered or failed before are sent again; the others for the first time.

    Raises:
        ConflictError: the endpoint is disabled; enable it first.
    """
    if endpoint.disabled_reason is not None:
        raise ConflictError("The endpoint is disabled; enable it first.")
    which = [
        WebhookEvent.tenant_id == endpoint.tenant_id,
        WebhookEvent.created_at >= since,
        WebhookEvent.payload.is_not(None),
        WebhookEvent.type.in_(fanout.wanted_types(endpoint)),
    ]
    later = select(WebhookEvent.created_at).where(*which).order_by(WebhookEvent.created_at)
    next_since = session.scalar(later.offset(MAX_REPLAYED).limit(1))
    if next_since is not None:
        which.append(WebhookEvent.created_at < next_since)
    over_limit = session.scalar(
        select(func.count())
        .select_from(WebhookDispatch)
        .join(WebhookEvent, WebhookEvent.id == WebhookDispatch.event_id)
        .where(WebhookDispatch.endpoint_id == endpoint.id, WebhookDispatch.num_replays >= MAX_REPLAYS, *which)
    )
    queued = session.scalars(_replaying(endpoint, which)).all()
    # A claim that notices one of them finds the others.
    one = update(WebhookDispatch).where(WebhookDispatch.id.in_(queued[:1])).values(is_noticed=False)
    session.execute(one, execution_options={"synchronize_session": False})
    named, number = ids.endpoint_id(endpoint.id), len(queued)
    tenant_id = endpoint.tenant_id
    audit.note(session, Action.ENDPOINT_REPLAY, named, tenant_id=tenant_id, num_deliveries=number)
    return Replayed(number, next_since, num_over_limit=over_limit or 0)


_MAY_BE_REPLAYED: Final = and_(
    WebhookDispatch.state != "sending", WebhookDispatch.num_replays < literal_column(str(MAX_REPLAYS))
)
_REQUEUED: Final = {
    "state": "pending",
    "step": 0,
    "num_lost": 0,
    "num_replays": WebhookDispatch.num_replays + 1,
    "is_noticed": False,
    "queued_at": func.clock_timestamp(),
    "next_attempt_at": func.clock_timestamp(),
}


def _replaying(
    endpoint: WebhookEndpoint, which: Sequence[ColumnElement[bool]]
) -> ReturningInsert[tuple[UUID]]:
    """Build the insert that queues these events for the endpoint, new or again."""
    columns = {
        "id": func.gen_random_uuid(),
        "tenant_id": WebhookEvent.tenant_id,
        "event_id": WebhookEvent.id,
        "destination_id": literal(endpoint.id),
        "endpoint_id": literal(endpoint.id),
        "includes_output": literal(endpoint.includes_output),
        "state": literal("pending"),
        "next_attempt_at": func.clock_timestamp(),
        "is_noticed": literal(value=True),
    }
    return (
        insert(WebhookDispatch)
        .from_select(list(columns), select(*columns.values()).where(*which), include_defaults=False)
        .on_conflict_do_update(
            index_elements=["event_id", "destination_id"],
            set_=_REQUEUED | {"is_noticed": True},
            where=_MAY_BE_REPLAYED,
        )
        .returning(WebhookDispatch.id)
    )
