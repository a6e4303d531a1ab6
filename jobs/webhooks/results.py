"""Record delivery attempts: log them, schedule the next attempt, pause destinations that fail."""

import random
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime, timedelta
from typing import Any, Final, Protocol
from uuid import UUID

from sqlalchemy import text, update
from sqlalchemy.dialects import postgresql
from sqlalchemy.orm import Session

from jobs.database import database_now
from jobs.ids import uuid7
from jobs.models.webhook_delivery import WebhookBreaker, WebhookDispatch
from jobs.settings import WebhookSettings
from jobs.webhooks import destinations, endpoints
from jobs.webhooks.claims import ClaimedDispatch
from jobs.webhooks.fairness import BREAKER_FAILURES
from jobs.webhooks.fanout import MAX_AGE
from jobs.webhooks.rules import next_delivery_at

_MAX_PAUSE: Final = timedelta(minutes=15)
_MAX_RETRY_AFTER: Final = timedelta(hours=24)  # the longest step of the schedule
_GONE: Final = 410  # the receiver wants no more events
# Failures of the operator's proxy, which disable no endpoint however long they last.
_OPERATORS: Final = frozenset({"proxy_unavailable", "proxy_auth_failed", "proxy_protocol_error"})

# Every attempt is logged, unless its event was deleted meanwhile. A success counts whichever attempt it comes
# from, even one whose sender was presumed dead.
_RECORD: Final = text("""
    WITH recorded AS (
        SELECT * FROM unnest(
            CAST(:id AS uuid[]), CAST(:dispatch_id AS uuid[]), CAST(:tenant_id AS uuid[]),
            CAST(:event_id AS uuid[]), CAST(:endpoint_id AS uuid[]), CAST(:attempt AS integer[]),
            CAST(:status AS integer[]), CAST(:outcome AS text[]), CAST(:num_bytes AS bigint[]),
            CAST(:latency_ms AS integer[])
        ) AS recorded (id, dispatch_id, tenant_id, event_id, endpoint_id, attempt, status, outcome, num_bytes,
            latency_ms)
    ), logged AS (
        INSERT INTO webhook_deliveries
            (id, tenant_id, event_id, endpoint_id, attempt, status, outcome, num_bytes, latency_ms)
        SELECT recorded.id, recorded.tenant_id, event_id, recorded.endpoint_id, attempt, status, outcome,
            num_bytes, latency_ms
        FROM recorded JOIN webhook_events ON webhook_events.id = event_id
    ), delivered AS (
        UPDATE webhook_dispatches SET state = 'delivered', next_attempt_at = NULL
        WHERE id IN (SELECT dispatch_id FROM recorded WHERE outcome = 'delivered')
    )
    DELETE FROM webhook_breakers WHERE destination_id = ANY(CAST(:well AS uuid[])) RETURNING destination_id
""")


class DeliveryResult(Protocol):
    """The result of an exchange; exactly one of `status` and `error_code` is set."""

    @property
    def status(self) -> int | None:
        """HTTP status of the response."""

    @property
    def error_code(self) -> str | None:
        """Reason for a missing response."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the response that were read."""

    @property
    def latency(self) -> timedelta:
        """Time from the start of the exchange to its end."""

    @property
    def retry_after(self) -> timedelta | None:
        """Delay that the receiver asked for."""


def record(
    session: Session,
    exchanges: Sequence[tuple[ClaimedDispatch, DeliveryResult]],
    settings: WebhookSettings,
    rng: random.Random,
) -> None:
    """Log each attempt, and mark its event delivered, due again later, or failed."""
    if not exchanges:
        return
    exchanges = sorted(exchanges, key=lambda each: each[0].id)  # in one order everywhere: no deadlock
    healthy = {dispatch.destination_id for dispatch, result in exchanges if is_delivered(result)}
    logged = [_logged(dispatch, result) for dispatch, result in exchanges]
    columns = {name: [row[name] for row in logged] for name in logged[0]}
    for destination_id in session.scalars(_RECORD, {**columns, "well": sorted(healthy)}).all():
        destinations.wake(session, destination_id)  # its pause is over
    failed = [(dispatch, result) for dispatch, result in exchanges if not is_delivered(result)]
    if not failed:
        return
    now = database_now(session)
    for dispatch, result in failed:
        _put_off(session, dispatch, result, now=now, rng=rng)
    _count_failures(session, healthy, failed, settings, now=now, rng=rng)
    for endpoint_id in sorted(
        {
            dispatch.endpoint_id
            for dispatch, result in failed
            if dispatch.endpoint_id and result.status == _GONE
        }
    ):
        endpoints.disable(session, endpoint_id, "gone", now=now)


def is_delivered(result: DeliveryResult) -> bool:
    """Return True if the receiver acknowledged the event."""
    return result.status is not None and 200 <= result.status < 300


def outcome_of(result: DeliveryResult) -> str:
    """Return `delivered` or the code of the failure."""
    return "delivered" if is_delivered(result) else str(result.error_code or "bad_status")


def _logged(dispatch: ClaimedDispatch, result: DeliveryResult) -> Mapping[str, Any]:
    return {
        "id": uuid7(),
        "dispatch_id": dispatch.id,
        "tenant_id": dispatch.tenant_id,
        "event_id": dispatch.event_id,
        "endpoint_id": dispatch.endpoint_id,
        "attempt": dispatch.attempt,
        "status": result.status,
        "outcome": outcome_of(result),
        "num_bytes": result.num_bytes,
        "latency_ms": round(result.latency.total_seconds() * 1000),
    }


def _put_off(
    session: Session, dispatch: ClaimedDispatch, result: DeliveryResult, *, now: datetime, rng: random.Random
) -> None:
    """Schedule the next attempt, or fail the dispatch; respect the receiver's delay."""
    next_at = next_delivery_at(dispatch.step, now, rng)
    if next_at is not None and result.retry_after is not None:
        next_at = max(next_at, now + min(result.retry_after, _MAX_RETRY_AFTER))
    if result.status == _GONE or (next_at is not None and next_at > dispatch.queued_at + MAX_AGE):
        next_at = None
    session.execute(
        update(WebhookDispatch)
        # A later attempt, started because this one took too long, decides.
        .where(WebhookDispatch.id == dispatch.id, WebhookDispatch.num_attempts == dispatch.attempt)
        .where(WebhookDispatch.state == "sending")
        .values(
            state="failed" if next_at is None else "pending",
            next_attempt_at=next_at,
            num_lost=0,
            is_noticed=False,
        )
        .execution_options(synchronize_session=False)
    )


def drop(session: Session, dispatch: ClaimedDispatch, result: DeliveryResult) -> None:
    """End a dispatch whose outcome cannot be recorded; count and log nothing."""
    session.execute(
        update(WebhookDispatch)
        .where(WebhookDispatch.id == dispatch.id, WebhookDispatch.num_attempts == dispatch.attempt)
        .where(WebhookDispatch.state == "sending")
        .values(state="delivered" if is_delivered(result) else "failed", next_attempt_at=None)
        .execution_options(synchronize_session=False)
    )


def _count_failures(
    session: Session,
    healthy: AbstractSet[UUID],
    failed: Sequence[tuple[ClaimedDispatch, DeliveryResult]],
    settings: WebhookSettings,
    *,
    now: datetime,
    rng: random.Random,
) -> None:
    """Count failures of destinations without a success; pause or disable them if due."""
    failures: dict[UUID, list[tuple[ClaimedDispatch, DeliveryResult]]] = {}
    for dispatch, result in failed:
        if dispatch.destination_id not in healthy:
            failures.setdefault(dispatch.destination_id, []).append((dispatch, result))
    for destination_id in sorted(failures):
        _fail(session, destination_id, failures[destination_id], settings, now=now, rng=rng)


def _fail(
    session: Session,
    destination_id: UUID,
    failed: Sequence[tuple[ClaimedDispatch, DeliveryResult]],
    settings: WebhookSettings,
    *,
    now: datetime,
    rng: random.Random,
) -> None:
    dispatch = failed[0][0]
    is_theirs = any(outcome_of(result) not in _OPERATORS for _, result in failed)
    counted: dict[str, object] = {"num_failures": WebhookBreaker.num_failures + len(failed)}
    new = postgresql.insert(WebhookBreaker).values(
        destination_id=destination_id,
        tenant_id=dispatch.tenant_id,
        num_failures=len(failed),
        failing_since=now,
    )
    breaker = session.scalars(
        new.on_conflict_do_update(
            index_elements=["destination_id"],
            # While the operator's proxy fails, nobody knows whether the receiver would have.
            set_=counted if is_theirs else counted | {"failing_since": now},
        ).returning(WebhookBreaker),
        execution_options={"populate_existing": True},
    ).one()
    pause = timedelta(0)
    if breaker.num_failures >= BREAKER_FAILURES:
        doubled = min(breaker.num_failures - BREAKER_FAILURES, 10)
        pause = min(_MAX_PAUSE, timedelta(seconds=settings.breaker_seconds) * 2**doubled)
        pause *= rng.uniform(0.8, 1.2)
    asked = [result.retry_after for _, result in failed if result.retry_after is not None]
    pause = max([pause, *(min(each, _MAX_PAUSE) for each in asked)])
    breaker.paused_until = now + pause if pause else None
    session.flush()
    is_lost = is_theirs and now - breaker.failing_since >= timedelta(days=settings.disable_days)
    if dispatch.endpoint_id and breaker.num_failures >= BREAKER_FAILURES and is_lost:
        endpoints.disable(session, dispatch.endpoint_id, "failing", now=now)
