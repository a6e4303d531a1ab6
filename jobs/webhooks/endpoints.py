"""Endpoints: where a tenant's events go, which ones, signed with which secret; and replays."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from sqlalchemy import ColumnElement, delete, exists, func, literal_column, select
from sqlalchemy.orm import Session

from jobs import audit, ids, telemetry
from jobs.audit import Action
from jobs.audit.log import Detail
from jobs.database import advisory_locks, database_now, paging
from jobs.database.advisory_locks import Lock
from jobs.database.paging import Page, Range
from jobs.database.rows import require
from jobs.errors import ConflictError
from jobs.models.webhook import WebhookEndpoint
from jobs.models.webhook_delivery import WebhookBreaker, WebhookDispatch
from jobs.webhooks import destinations, fanout, outbox, secrets
from jobs.webhooks.events import Event
from jobs.webhooks.rules import ENDPOINT_DISABLED, ENDPOINT_TEST
from jobs.webhooks.vault import Vault

_REMOVED_AT_ONCE: Final = 5000


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
    _note(session, Action.ENDPOINT_CREATE, endpoint, events=endpoint.events)
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
    given = [field.name for field in fields(spec) if getattr(spec, field.name) is not None]
    _note(session, Action.ENDPOINT_UPDATE, endpoint, fields=given)
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
    _note(session, Action.ENDPOINT_DELETE, endpoint)
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
    _note(session, Action.ENDPOINT_ROTATE, endpoint, overlap_seconds=overlap.total_seconds())
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
    _note(session, Action.ENDPOINT_TEST, endpoint)
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


def _note(session: Session, action: Action, endpoint: WebhookEndpoint, **details: Detail) -> None:
    audit.note(session, action, ids.endpoint_id(endpoint.id), tenant_id=endpoint.tenant_id, **details)
