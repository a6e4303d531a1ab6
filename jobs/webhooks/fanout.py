"""Fan-out: the destinations of an event, and the dispatch rows that still have to be delivered."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, cast
from uuid import UUID

from sqlalchemy import Table, func, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from jobs.database.statements import Query, Rows, Statement
from jobs.ids import uuid7
from jobs.models.webhook import WebhookEndpoint, WebhookEvent
from jobs.models.webhook_delivery import WebhookDispatch
from jobs.webhooks.destinations import server_id
from jobs.webhooks.rules import ALL_EVENTS, EVENT_TYPES, ON_REQUEST

# Per statement, each with up to 11 parameters: Postgres takes 65,535 at most.
_MAX_ROWS: Final = 2000
# An event not delivered for this long is given up; the schedule itself ends after 92 hours at most.
MAX_AGE: Final = timedelta(days=4)
# Of an endpoint in one transaction; an endpoint that was down for days can have millions.
MAX_FAILED: Final = 5000

# An endpoint's dispatches have its id as their destination. One state a part, so that each has its index.
_FAIL_PENDING: Final = text("""
    WITH pending AS (
        SELECT id FROM webhook_dispatches WHERE destination_id = :id AND state = 'pending'
        LIMIT :limit FOR UPDATE SKIP LOCKED
    ), sending AS (
        SELECT id FROM webhook_dispatches WHERE destination_id = :id AND state = 'sending'
        LIMIT :limit FOR UPDATE SKIP LOCKED
    )
    UPDATE webhook_dispatches SET state = 'failed', next_attempt_at = NULL
    WHERE id IN (SELECT id FROM pending UNION ALL SELECT id FROM sending)
    RETURNING id
""")


@dataclass(frozen=True, slots=True)
class Destination:
    """A receiver of events.

    Attributes:
        id: identifies it to fairness and circuit breakers.
        tenant_id: the owner.
        endpoint_id: None: a job's or batch's own URL.
        url: of a job or batch; None: an endpoint's.
        secret: of a job or batch, sealed; None: the tenant's default.
        includes_output: small outputs are sent along.
    """

    id: UUID
    tenant_id: UUID
    endpoint_id: UUID | None
    url: str | None
    secret: bytes | None
    includes_output: bool


def for_url(tenant_id: UUID, url: str, *, secret: bytes | None, includes_output: bool = False) -> Destination:
    """Build the destination of a job's or batch's URL; its id is the server's."""
    return Destination(server_id(tenant_id, url), tenant_id, None, url, secret, includes_output)


class Subscriber(NamedTuple):
    """What fan-out needs of an endpoint; `WebhookEndpoint` describes the fields. No session tracks it."""

    id: UUID
    tenant_id: UUID
    events: Sequence[str]
    includes_output: bool
    disabled_reason: str | None


def of_endpoint(endpoint: WebhookEndpoint | Subscriber) -> Destination:
    """Return the endpoint as a destination."""
    return Destination(endpoint.id, endpoint.tenant_id, endpoint.id, None, None, endpoint.includes_output)


def asking_endpoints(tenant_ids: Collection[UUID]) -> Query:
    """Return the query of all endpoints of these tenants, disabled ones included, for `endpoints_in`."""
    return Query(_ENDPOINTS, {"tenant_ids": list(tenant_ids)})


def endpoints_in(rows: Rows) -> defaultdict[UUID, list[Subscriber]]:
    """Return the endpoints that `asking_endpoints` found, by tenant."""
    found: defaultdict[UUID, list[Subscriber]] = defaultdict(list)
    for endpoint in (Subscriber(*row) for row in rows):
        found[endpoint.tenant_id].append(endpoint)
    return found


_ENDPOINTS: Final = Statement(
    f"SELECT {', '.join(Subscriber._fields)} FROM webhook_endpoints"  # noqa: S608  # built from constants
    " WHERE tenant_id = ANY(%(tenant_ids)s::uuid[])"
)


def wanted_types(endpoint: WebhookEndpoint | Subscriber) -> list[str]:
    """List the event types that the endpoint's filter accepts."""
    takes_all = ALL_EVENTS in endpoint.events
    return [kind for kind in EVENT_TYPES if kind in endpoint.events or (takes_all and kind not in ON_REQUEST)]


def subscribed(endpoints: Iterable[Subscriber], kind: str) -> list[Destination]:
    """Return the enabled endpoints that want this type of event."""
    return [
        of_endpoint(each) for each in endpoints if each.disabled_reason is None and kind in wanted_types(each)
    ]


def insert_dispatches(session: Session, dispatches: Iterable[tuple[UUID, Destination]]) -> None:
    """Queue events, by id, for these destinations, due now.

    Only the first one of each destination is marked unnoticed: that is enough for a claim to schedule it.
    """
    rows: list[dict[str, Any]] = []
    seen: set[UUID] = set()
    for event_id, to in dispatches:
        row = {
            "id": uuid7(),
            "tenant_id": to.tenant_id,
            "event_id": event_id,
            "destination_id": to.id,
            "endpoint_id": to.endpoint_id,
            "url": to.url,
            "secret": to.secret,
            "includes_output": to.includes_output,
            "state": "pending",
            "is_noticed": to.id in seen,
        }
        rows.append(row)
        seen.add(to.id)
    for start in range(0, len(rows), _MAX_ROWS):
        session.execute(_QUEUE, rows[start : start + _MAX_ROWS])


# Past the ORM, rows as parameters, so that it is built once.
_QUEUE: Final = insert(cast("Table", WebhookDispatch.__table__)).values(
    next_attempt_at=func.clock_timestamp()
)


def fail_pending(session: Session, endpoint_id: UUID) -> int:
    """Fail some of what is still queued for the endpoint, which is disabled; it can be replayed.

    Returns:
        How many; 0: nothing is left but what another transaction is changing.
    """
    failed = session.scalars(_FAIL_PENDING, {"id": endpoint_id, "limit": MAX_FAILED}).all()
    return len(failed)


def find_old(session: Session, *, now: datetime, limit: int = 1000) -> Sequence[UUID]:
    """Lock dispatches that have waited longer than MAX_AGE."""
    old = select(WebhookDispatch.id).where(
        WebhookDispatch.state == "pending", WebhookDispatch.queued_at < now - MAX_AGE
    )
    return session.scalars(old.limit(limit).with_for_update(skip_locked=True)).all()


def give_up(session: Session, old: Sequence[UUID]) -> None:
    """Fail these dispatches; they can be replayed."""
    failed = update(WebhookDispatch).where(WebhookDispatch.id.in_(old))
    session.execute(
        failed.values(state="failed", next_attempt_at=None), execution_options={"synchronize_session": False}
    )


def find_unadopted(session: Session, *, limit: int = 500) -> Sequence[WebhookEvent]:
    """Lock undelivered events that a process of the previous release left."""
    left = select(WebhookEvent).where(WebhookEvent.state == "pending").limit(limit)
    return session.scalars(left.with_for_update(skip_locked=True)).all()


def adopt(session: Session, left: Iterable[WebhookEvent]) -> None:
    """Queue these events for the URLs in their own rows."""
    dispatches = []
    for event in left:
        dispatches.append((event.id, for_url(event.tenant_id, event.url or "", secret=None)))
        event.state, event.url, event.next_delivery_at = "none", None, None
    session.flush()
    insert_dispatches(session, dispatches)
