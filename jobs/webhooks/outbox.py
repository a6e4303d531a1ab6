"""Append one event per subject and type, in the transaction that made it happen."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Final
from uuid import UUID

from sqlalchemy import Text, select, type_coerce
from sqlalchemy.orm import Session

from jobs.database import statements
from jobs.database.sealed_columns import plain_length
from jobs.database.statements import Query, Statement, as_json
from jobs.ids import uuid7
from jobs.models import Result
from jobs.webhooks import fanout
from jobs.webhooks.events import SUBJECT_COLUMNS, Event
from jobs.webhooks.fanout import Destination, Subscriber

# Events in one statement, with their payloads and outputs.
_MAX_ROWS: Final = 1000
# An event carries no more output than this; a client that wants more reads `result_url`.
MAX_OUTPUT_BYTES: Final = 16 * 1024


def publish(session: Session, events: Sequence[Event]) -> bool:
    """Append these events in the caller's transaction, and queue their deliveries.

    Args:
        session: the caller's transaction.
        events: about subjects of one kind. One that exists already is skipped.

    Returns:
        True if there is anything to deliver.
    """
    has_deliveries = False
    for start in range(0, len(events), _MAX_ROWS):
        given = _given(session, events[start : start + _MAX_ROWS])
        has_deliveries |= bool(statements.fetch(session, _APPEND, given))
    return has_deliveries


def _given(session: Session, events: Sequence[Event]) -> dict[str, object]:
    """Return the parameters of the statement that appends these events."""
    tenants = {event.subject.tenant_id for event in events if event.is_announced}
    # Jobs are many: the content of those that no endpoint could ever want is not kept.
    of_jobs = [event.subject.id for event in events if event.is_of_job and (event.own or event.is_announced)]
    endpoints, reasoning_tokens = _read(session, tenants, of_jobs)
    near = {event.id: endpoints[event.subject.tenant_id] if event.is_announced else [] for event in events}
    to = {event.id: _destinations(event, near[event.id]) for event in events}
    kept = [event for event in events if to[event.id] or near[event.id] or not event.is_of_job]
    with_output = {event.subject.id for event in kept if any(each.includes_output for each in to[event.id])}
    outputs = _outputs(session, with_output)
    payloads = {
        event.id: event.payload(reasoning_tokens=reasoning_tokens.get(event.subject.id, 0)) for event in kept
    }
    due = [(event.id, each) for event in events for each in to[event.id]]
    return {
        "ids": [event.id for event in events],
        "tenant_ids": [event.subject.tenant_id for event in events],
        **{
            f"{name}s": [event.subject.id if event.column == name else None for event in events]
            for name in SUBJECT_COLUMNS
        },
        "types": [event.type for event in events],
        "payloads": as_json([payloads.get(event.id) for event in events]),
        "outputs": [outputs.get(event.subject.id) for event in events],
        "traceparents": [event.traceparent for event in events],
        "due_ids": [uuid7() for _ in due],
        "event_ids": [event_id for event_id, _ in due],
        "destination_ids": [each.id for _, each in due],
        "to_endpoint_ids": [each.endpoint_id for _, each in due],
        "urls": [each.url for _, each in due],
        "secrets": [each.secret for _, each in due],
        "include_output": [each.includes_output for _, each in due],
    }


# The output is copied as it is stored: one that cannot be decrypted must not stop the others. Of the
# dispatches of a destination only the first is marked unnoticed: that is enough for a claim to schedule it.
_APPEND: Final = Statement(f"""
    WITH added AS (
        INSERT INTO webhook_events
            (id, tenant_id, {", ".join(SUBJECT_COLUMNS)}, type, payload, output, traceparent)
        SELECT * FROM unnest(
            %(ids)s::uuid[], %(tenant_ids)s::uuid[],
            {", ".join(f"%({name}s)s::uuid[]" for name in SUBJECT_COLUMNS)},
            %(types)s::text[], %(payloads)s::jsonb[], %(outputs)s::text[], %(traceparents)s::text[]
        )
        ON CONFLICT DO NOTHING RETURNING id, tenant_id
    )
    INSERT INTO webhook_dispatches
        (id, tenant_id, event_id, destination_id, endpoint_id, url, secret, includes_output, state,
        is_noticed, next_attempt_at)
    SELECT due.id, added.tenant_id, added.id, destination_id, endpoint_id, url, secret, includes_output,
        'pending', row_number() OVER (PARTITION BY destination_id ORDER BY due.id) > 1, clock_timestamp()
    FROM unnest(
        %(due_ids)s::uuid[], %(event_ids)s::uuid[], %(destination_ids)s::uuid[], %(to_endpoint_ids)s::uuid[],
        %(urls)s::text[], %(secrets)s::bytea[], %(include_output)s::boolean[]
    ) AS due(id, event_id, destination_id, endpoint_id, url, secret, includes_output)
        JOIN added ON added.id = due.event_id
    RETURNING event_id
""")  # noqa: S608  # built from constants


def _read(
    session: Session, tenant_ids: Collection[UUID], job_ids: Sequence[UUID]
) -> tuple[Mapping[UUID, Sequence[Subscriber]], Mapping[UUID, int]]:
    """Read all endpoints of these tenants, and how many tokens of these jobs' results were thinking."""
    if not tenant_ids and not job_ids:
        return defaultdict(list), {}
    asked = [fanout.asking_endpoints(tenant_ids), Query(_REASONING, {"job_ids": job_ids})]
    endpoints, reasoning_tokens = statements.fetch_all(session, asked)
    return fanout.endpoints_in(endpoints), dict(reasoning_tokens)


_REASONING: Final = Statement(
    "SELECT job_id, reasoning_tokens FROM results WHERE job_id = ANY(%(job_ids)s::uuid[])"
)


def _destinations(event: Event, endpoints: Sequence[Subscriber]) -> list[Destination]:
    to = fanout.subscribed(endpoints, event.type)
    return [*to, event.own] if event.own else to


def _outputs(session: Session, job_ids: Collection[UUID]) -> Mapping[UUID, str | None]:
    """Read what these jobs generated, as it is stored, where it is small enough to send."""
    if not job_ids:
        return {}
    is_small = plain_length(Result.output) <= MAX_OUTPUT_BYTES
    query = select(Result.job_id, type_coerce(Result.output, Text).label("stored")).where(
        Result.job_id.in_(job_ids), is_small
    )
    return {row.job_id: row.stored for row in session.execute(query)}
