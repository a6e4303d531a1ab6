"""Append one event per subject and type, in the transaction that made it happen."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast
from uuid import UUID

from sqlalchemy import Table, Text, bindparam, case, select, type_coerce
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from jobs.database.sealed_columns import plain_length
from jobs.models import Result, WebhookEndpoint, WebhookEvent
from jobs.webhooks import fanout
from jobs.webhooks.events import Event
from jobs.webhooks.fanout import Destination

# Per statement, each with 7 parameters: Postgres takes 65,535 at most.
_MAX_ROWS: Final = 1000
# An event carries no more output than this; a client that wants more reads `result_url`.
MAX_OUTPUT_BYTES: Final = 16 * 1024


@dataclass(frozen=True, slots=True)
class _Generated:
    """What an event tells of a job's result; `output`, as it is stored, is None if it is not sent along."""

    reasoning_tokens: int
    output: str | None


_NOTHING: Final = _Generated(0, None)


def publish(session: Session, events: Sequence[Event]) -> bool:
    """Append these events, and queue their deliveries.

    Args:
        session: the caller's transaction.
        events: about subjects of one kind. One that exists already is skipped.

    Returns:
        True if there is anything to deliver.
    """
    starts = range(0, len(events), _MAX_ROWS)
    found = [_publish(session, events[start : start + _MAX_ROWS]) for start in starts]
    return any(found)


def _publish(session: Session, events: Sequence[Event]) -> bool:
    tenants = {event.subject.tenant_id for event in events if event.is_announced}
    endpoints = fanout.endpoints_of(session, tenants)
    near = {event.id: endpoints[event.subject.tenant_id] if event.is_announced else [] for event in events}
    to = {event.id: _destinations(event, near[event.id]) for event in events}
    # Jobs are many: the content of those that no endpoint could ever want is not kept.
    kept = [event for event in events if to[event.id] or near[event.id] or not event.is_of_job]
    with_output = {event.subject.id for event in kept if any(each.includes_output for each in to[event.id])}
    generated = _generated(session, [event.subject.id for event in kept if event.is_of_job], with_output)
    payloads = {
        event.id: event.payload(reasoning_tokens=generated.get(event.subject.id, _NOTHING).reasoning_tokens)
        for event in kept
    }
    rows = [
        {
            "id": event.id,
            "tenant_id": event.subject.tenant_id,
            event.column: event.subject.id,
            "type": event.type,
            "payload": payloads.get(event.id),
            "stored_output": generated.get(event.subject.id, _NOTHING).output,
            "traceparent": event.traceparent,
        }
        for event in events
    ]
    added = set(session.scalars(_APPEND, rows)) if rows else set()
    due = [(event.id, each) for event in events if event.id in added for each in to[event.id]]
    fanout.insert_dispatches(session, due)
    return bool(due)


# Past the ORM, which has nothing to add; rows as parameters, so that it is built once.
_EVENTS: Final = cast("Table", WebhookEvent.__table__)
# The output is copied as it is stored: one that cannot be decrypted must not stop the others.
_APPEND: Final = (
    insert(_EVENTS)
    .values(output=bindparam("stored_output", type_=Text()))
    .on_conflict_do_nothing()
    .returning(_EVENTS.c.id)
)


def _destinations(event: Event, endpoints: Sequence[WebhookEndpoint]) -> list[Destination]:
    to = fanout.subscribed(endpoints, event.type)
    return [*to, event.own] if event.own else to


def _generated(
    session: Session, job_ids: Sequence[UUID], with_output: Collection[UUID]
) -> Mapping[UUID, _Generated]:
    """Read what ended jobs generated; the outputs only of `with_output`, if small enough to send."""
    if not job_ids:
        return {}
    is_sent = Result.job_id.in_(with_output) & (plain_length(Result.output) <= MAX_OUTPUT_BYTES)
    stored = type_coerce(Result.output, Text)
    query = select(Result.job_id, Result.reasoning_tokens, case((is_sent, stored)).label("output")).where(
        Result.job_id.in_(job_ids)
    )
    return {row.job_id: _Generated(row.reasoning_tokens, row.output) for row in session.execute(query)}
