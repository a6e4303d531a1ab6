"""Append one event per subject and type, in the transaction that made it happen."""

from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from jobs.models import Result, WebhookEndpoint, WebhookEvent
from jobs.webhooks import fanout
from jobs.webhooks.events import Event
from jobs.webhooks.fanout import Destination

# Per statement, each with 6 parameters: Postgres takes 65,535 at most.
_MAX_ROWS: Final = 1000
# An event carries no more output than this; a client that wants more reads `result_url`.
MAX_OUTPUT_BYTES: Final = 16 * 1024


def publish(session: Session, events: Sequence[Event]) -> None:
    """Append these events, and queue their deliveries.

    Args:
        session: the caller's transaction.
        events: about subjects of one kind. One that exists already is skipped.
    """
    for start in range(0, len(events), _MAX_ROWS):
        _publish(session, events[start : start + _MAX_ROWS])


def _publish(session: Session, events: Sequence[Event]) -> None:
    tenants = {event.subject.tenant_id for event in events if event.is_announced}
    endpoints = fanout.endpoints_of(session, tenants)
    near = {event.id: endpoints[event.subject.tenant_id] if event.is_announced else [] for event in events}
    to = {event.id: _destinations(event, near[event.id]) for event in events}
    outputs = _outputs(
        session, [event.subject.id for event in events if any(each.includes_output for each in to[event.id])]
    )
    rows = [
        {
            "id": event.id,
            "tenant_id": event.subject.tenant_id,
            event.column: event.subject.id,
            "type": event.type,
            # Jobs are many: the content of those that no endpoint could ever want is not kept.
            "payload": event.payload if to[event.id] or near[event.id] or event.column != "job_id" else None,
            "output": outputs.get(event.subject.id),
        }
        for event in events
    ]
    new = insert(WebhookEvent).values(rows).on_conflict_do_nothing().returning(WebhookEvent.id)
    added = set(session.scalars(new))
    fanout.insert_dispatches(
        session, ((event.id, each) for event in events if event.id in added for each in to[event.id])
    )


def _destinations(event: Event, endpoints: Sequence[WebhookEndpoint]) -> list[Destination]:
    to = fanout.subscribed(endpoints, event.type)
    return [*to, event.own] if event.own else to


def _outputs(session: Session, subject_ids: Sequence[UUID]) -> Mapping[UUID, str]:
    """Read the outputs of those of these subjects that are jobs, if small enough to send."""
    if not subject_ids:
        return {}
    query = select(Result.job_id, Result.output).where(
        Result.job_id.in_(subject_ids), func.octet_length(Result.output) <= MAX_OUTPUT_BYTES
    )
    return {row.job_id: row.output for row in session.execute(query)}
