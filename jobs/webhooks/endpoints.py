"""Endpoints: where a tenant's events go, which ones, signed with which secret; and replays."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from sqlalchemy import ColumnElement, and_, delete, exists, func, literal, literal_column, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session
from sqlalchemy.sql.dml import ReturningInsert

from jobs import ids, telemetry
from jobs.database import advisory_locks, database_now, paging
from jobs.database.advisory_locks import Lock
from jobs.database.paging import Page, Range
from jobs.database.rows import require
from jobs.errors import ConflictError
from jobs.models.webhook import WebhookEndpoint, WebhookEvent
from jobs.models.webhook_delivery import WebhookBreaker, WebhookDispatch
from jobs.webhooks import destinations, fanout, outbox, secrets
from jobs.webhooks.events import Event
from jobs.webhooks.rules import ENDPOINT_DISABLED, ENDPOINT_TEST
from jobs.webhooks.vault import Vault

# One call replays no more; its result says where to continue.
MAX_REPLAYED: Final = 50_000
# Of one event to one destination: an outage needs a few, and each costs up to ten attempts and log lines.
MAX_REPLAYS: Final = 100
_REMOVED_AT_ONCE: Final = 5000


class ReplayLimitError(ConflictError):
    """The event has reached its limit of replays."""

    code = "replay_limit_exceeded"


@dataclass(frozen=True, slots=True)
class EndpointSpec:
    """A validated request for an endpoint; None leaves a field as it is.

    Attributes:
        events: types, or `*`.
        is_enabled: False: nothing is sent until it is True again.
    """

    url: str | None = None
    description: str | None = None
    events: Sequence[str] | None = None
    includes_output: bool | None = None
    is_enabled: bool | None = None


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


def create(
    session: Session,
    spec: EndpointSpec,
    *,
    tenant_id: UUID,
    vault: Vault,
    secret: str | None,
    max_endpoints: int,
) -> tuple[WebhookEndpoint, str]:
    """Create an endpoint, and return it with its signing secret.

    Raises:
        ConflictError: the tenant has the maximum number of endpoints; delete one first.
    """
    advisory_locks.hold(session, Lock.DESTINATIONS, of=str(tenant_id))  # concurrent calls count each other
    count = select(func.count()).select_from(WebhookEndpoint).where(*_visible(tenant_id))
    if (session.scalar(count) or 0) >= max_endpoints:
        raise ConflictError(f"A tenant may have at most {max_endpoints} webhook endpoints; delete one first.")
    secret = secret or secrets.new_secret()
    endpoint = WebhookEndpoint(
        tenant_id=tenant_id,
        url=spec.url,
        description=spec.description or "",
        events=list(spec.events or ["*"]),
        includes_output=bool(spec.includes_output),
        secret=vault.seal(secret),
        created_at=database_now(session),
    )
    session.add(endpoint)
    session.flush()
    if spec.is_enabled is False:
        _disable(session, endpoint, "owner", now=endpoint.created_at)
    return endpoint, secret


def get(session: Session, endpoint_id: UUID, *, tenant_id: UUID) -> WebhookEndpoint:
    """Return the tenant's endpoint, locked.

    Raises:
        NotFoundError: the tenant has no such endpoint.
    """
    query = select(WebhookEndpoint).where(WebhookEndpoint.id == endpoint_id, *_visible(tenant_id))
    return require(session, query.with_for_update(key_share=True), kind="webhook endpoint")


def list_endpoints(session: Session, wanted: Range) -> Page[WebhookEndpoint]:
    """List the tenant's endpoints.

    Raises:
        InvalidRequestError: the page starts after an endpoint that is not the tenant's.
    """
    query = select(WebhookEndpoint).where(*_visible(wanted.tenant_id))
    return paging.read(
        session, query, (WebhookEndpoint.id, WebhookEndpoint.tenant_id), wanted, kind="webhook endpoint"
    )


def breakers(session: Session, endpoints: Sequence[WebhookEndpoint]) -> dict[UUID, WebhookBreaker]:
    """Return the circuit breakers of the endpoints that are failing."""
    wanted = [each.id for each in endpoints]
    found = session.scalars(select(WebhookBreaker).where(WebhookBreaker.destination_id.in_(wanted)))
    return {each.destination_id: each for each in found}


def fail_pending(session: Session, endpoint_id: UUID, *, tenant_id: UUID) -> int:
    """Fail some of what a disabled endpoint still has queued; return how many.

    Repeat it until it returns 0 before the endpoint is enabled again.

    Raises:
        NotFoundError: the tenant has no such endpoint.
    """
    endpoint = get(session, endpoint_id, tenant_id=tenant_id)
    return fanout.fail_pending(session, endpoint.id) if endpoint.disabled_reason is not None else 0


def update_endpoint(session: Session, endpoint: WebhookEndpoint, spec: EndpointSpec) -> None:
    """Apply the caller's changes; a re-enabled endpoint gets new events only (see `fail_pending`)."""
    if spec.url is not None and spec.url != endpoint.url:
        endpoint.url = spec.url
        _forget_failures(session, endpoint.id)
    if spec.description is not None:
        endpoint.description = spec.description
    if spec.events is not None:
        endpoint.events = list(spec.events)
    if spec.includes_output is not None:
        endpoint.includes_output = spec.includes_output
    if spec.is_enabled is False and endpoint.disabled_reason is None:
        _disable(session, endpoint, "owner", now=database_now(session))
    if spec.is_enabled and endpoint.disabled_reason is not None:
        endpoint.disabled_reason = endpoint.disabled_at = None
        _forget_failures(session, endpoint.id)
    session.flush()


def remove(session: Session, endpoint_id: UUID, *, tenant_id: UUID) -> None:
    """Delete an endpoint: hide it and send nothing more to it.

    The call returns at once: beyond some thousands, its dispatches are left to `sweep`.

    Raises:
        NotFoundError: the tenant has no such endpoint.
    """
    endpoint = get(session, endpoint_id, tenant_id=tenant_id)
    endpoint.deleted_at = database_now(session)
    if endpoint.disabled_reason is None:
        endpoint.disabled_reason, endpoint.disabled_at = "owner", endpoint.deleted_at
    _forget_failures(session, endpoint.id)
    session.flush()
    _remove_part(session, endpoint)


def sweep(session: Session) -> int:
    """Remove some dispatches of a deleted endpoint, finally itself; count the rows.

    It picks a random endpoint: one that cannot be removed must not block all others.
    """
    endpoint = _lock_random(session, WebhookEndpoint.deleted_at.is_not(None))
    return 0 if endpoint is None else _remove_part(session, endpoint)


def sweep_disabled(session: Session) -> int:
    """Fail some of what a random disabled endpoint still has queued; count the rows."""
    pending = exists().where(
        WebhookDispatch.destination_id == WebhookEndpoint.id,
        WebhookDispatch.state == literal_column("'pending'"),
    )
    endpoint = _lock_random(
        session, WebhookEndpoint.disabled_reason.is_not(None), WebhookEndpoint.deleted_at.is_(None), pending
    )
    return 0 if endpoint is None else fanout.fail_pending(session, endpoint.id)


def _lock_random(session: Session, *which: ColumnElement[bool]) -> WebhookEndpoint | None:
    query = select(WebhookEndpoint).where(*which).order_by(func.random()).limit(1)
    return session.scalar(query.with_for_update(skip_locked=True).execution_options(populate_existing=True))


def rotate(session: Session, endpoint: WebhookEndpoint, vault: Vault, *, overlap: timedelta) -> str:
    """Replace the endpoint's secret; the old one signs too until the overlap ends."""
    made = secrets.replace(endpoint, vault, now=database_now(session), overlap=overlap)
    session.flush()
    return made


def send_test(session: Session, endpoint: WebhookEndpoint) -> UUID:
    """Queue a test event for the endpoint, and return the event's id.

    Raises:
        ConflictError: the endpoint is disabled; enable it first.
    """
    if endpoint.disabled_reason is not None:
        raise ConflictError("The endpoint is disabled; enable it first.")
    event = Event(
        subject=endpoint,
        type=ENDPOINT_TEST,
        at=database_now(session),
        data={"id": ids.endpoint_id(endpoint.id)},
        own=fanout.of_endpoint(endpoint),
        is_announced=False,
    )
    outbox.publish(session, [event])
    return event.id


def disable(session: Session, endpoint_id: UUID, reason: str, *, now: datetime) -> None:
    """Disable the endpoint until its owner enables it; notify the owner's others."""
    query = select(WebhookEndpoint).where(WebhookEndpoint.id == endpoint_id).with_for_update(key_share=True)
    endpoint = session.scalar(query.execution_options(populate_existing=True))
    if endpoint is None or endpoint.disabled_reason is not None:
        return
    _disable(session, endpoint, reason, now=now)
    event = Event(
        subject=endpoint,
        type=ENDPOINT_DISABLED,
        at=now,
        data={"id": ids.endpoint_id(endpoint.id), "url": endpoint.url, "reason": reason},
    )
    outbox.publish(session, [event])
    telemetry.logger().warning(
        telemetry.WEBHOOK_DISABLED, endpoint_id=ids.endpoint_id(endpoint.id), reason=reason
    )


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
    endpoints = fanout.endpoints_of(session, [tenant_id])[tenant_id]
    new = [to for to in fanout.subscribed(endpoints, event.type) if to.id not in {*again, *known}]
    num_over_limit = sum(known.values())
    if num_over_limit and not again and not new:
        raise ReplayLimitError(f"An event may be replayed {MAX_REPLAYS} times to each of its destinations.")
    fanout.insert_dispatches(session, ((event_id, to) for to in new))
    return Replayed(len(again) + len(new), num_over_limit=num_over_limit)


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
    return Replayed(len(queued), next_since, num_over_limit=over_limit or 0)


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


def _disable(session: Session, endpoint: WebhookEndpoint, reason: str, *, now: datetime) -> None:
    endpoint.disabled_reason, endpoint.disabled_at = reason, now
    session.flush()
    fanout.fail_pending(session, endpoint.id)


def _remove_part(session: Session, endpoint: WebhookEndpoint) -> int:
    some = (
        select(WebhookDispatch.id)
        .where(WebhookDispatch.endpoint_id == endpoint.id)
        .limit(_REMOVED_AT_ONCE)
        .with_for_update(skip_locked=True)
    )
    doomed = session.scalars(some).all()
    session.execute(delete(WebhookDispatch).where(WebhookDispatch.id.in_(doomed)))
    if len(doomed) < _REMOVED_AT_ONCE:
        session.delete(endpoint)
        session.flush()
    return len(doomed) or 1


def _visible(tenant_id: UUID) -> tuple[ColumnElement[bool], ...]:
    return WebhookEndpoint.tenant_id == tenant_id, WebhookEndpoint.deleted_at.is_(None)


def _forget_failures(session: Session, endpoint_id: UUID) -> None:
    session.execute(delete(WebhookBreaker).where(WebhookBreaker.destination_id == endpoint_id))
    destinations.wake(session, endpoint_id)
