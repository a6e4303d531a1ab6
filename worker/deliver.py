"""Webhook deliveries: one event, one POST, one record; tried again by its schedule, also after a crash."""

import json
import random
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from uuid import UUID

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session, sessionmaker

from jobs import ids, telemetry, webhooks
from jobs.database import database_now, transaction
from jobs.models import JsonObject, WebhookDelivery, WebhookEvent
from jobs.settings import WebhookSettings
from worker import transport
from worker.network import Failure
from worker.transport import Answer

# Above the exchange's own deadline: until then nobody else takes an event whose worker may have died.
_CLAIM_MARGIN: Final = timedelta(seconds=10)
_GONE: Final = 410  # the receiver wants nothing any more
_RANDOM: Final = random.SystemRandom()


@dataclass(frozen=True, slots=True)
class Due:
    """An event that this worker delivers now.

    Attributes:
        attempt: this try's number, from 1.
    """

    event_id: UUID
    job_id: UUID | None
    url: str
    payload: JsonObject
    attempt: int


def deliver_next(sessions: sessionmaker[Session], settings: WebhookSettings) -> bool:
    """One event that was due has been sent and its outcome recorded; False: none was due.

    No transaction is open during the exchange.
    """
    with transaction(sessions) as session:
        due = claim_due(session, settings)
    if due is None:
        return False
    answer = _send(due, settings, sessions)
    with transaction(sessions) as session:
        state = record(session, due, answer)
    log = telemetry.logger().bind(
        job_id=due.job_id and ids.job_id(due.job_id), event_id=ids.event_id(due.event_id)
    )
    name = telemetry.WEBHOOK_DELIVERED if state == "delivered" else telemetry.WEBHOOK_FAILED
    log.info(name, try_number=due.attempt, status=answer.status, error=answer.error_code, state=state)
    return True


def _send(due: Due, settings: WebhookSettings, sessions: sessionmaker[Session]) -> Answer:
    """As `send`; what nobody foresaw is a failed try too, so that it stands in the record."""
    began = time.monotonic()
    try:
        return send(due, settings, sessions)
    except Exception:  # noqa: BLE001  # see above
        telemetry.logger().exception(telemetry.LOOP_FAILED, loop="deliver")
        latency = timedelta(seconds=time.monotonic() - began)
        return Answer(status=None, error_code=Failure.INTERNAL_ERROR, num_bytes=0, latency=latency)


def claim_due(session: Session, settings: WebhookSettings) -> Due | None:
    """An event whose time has come, put off for everybody else until this try must be over."""
    event = session.scalar(
        select(WebhookEvent)
        .where(WebhookEvent.state == "pending", WebhookEvent.next_delivery_at <= func.clock_timestamp())
        .order_by(WebhookEvent.next_delivery_at)
        .limit(1)
        .with_for_update(skip_locked=True)
    )
    if event is None:
        return None
    event.num_deliveries += 1
    deadline = timedelta(seconds=settings.deadline_seconds)
    event.next_delivery_at = database_now(session) + deadline + _CLAIM_MARGIN
    session.flush()
    return Due(
        event_id=event.id,
        job_id=event.job_id,
        url=event.url or "",
        payload=event.payload or {},
        attempt=event.num_deliveries,
    )


def send(due: Due, settings: WebhookSettings, sessions: sessionmaker[Session]) -> Answer:
    """What came of the POST."""
    assert settings.secret is not None, "without a secret nothing is delivered"  # noqa: S101  # see service.py
    with transaction(sessions) as session:
        now = database_now(session)
    body = json.dumps(due.payload, ensure_ascii=False, separators=(",", ":")).encode()
    signed = webhooks.signature_headers(
        body,
        event_id=ids.event_id(due.event_id),
        secrets=[settings.secret.get_secret_value()],
        now=now,
    )
    return transport.post(
        due.url,
        body,
        {"content-type": "application/json", "user-agent": "longbatch", **signed},
        allowed_hosts=settings.allowed_hosts,
        deadline=timedelta(seconds=settings.deadline_seconds),
    )


def record(session: Session, due: Due, answer: Answer) -> str:
    """The try stands in the log and the event is delivered, due again later, or given up; its state."""
    is_delivered = answer.status is not None and 200 <= answer.status < 300
    session.add(
        WebhookDelivery(
            event_id=due.event_id,
            attempt=due.attempt,
            status=answer.status,
            outcome="delivered" if is_delivered else answer.error_code or "bad_status",
            num_bytes=answer.num_bytes,
            latency_ms=round(answer.latency.total_seconds() * 1000),
        )
    )
    next_at = None
    if not is_delivered and answer.status != _GONE:
        next_at = webhooks.next_delivery_at(due.attempt, database_now(session), _RANDOM)
    state = "delivered" if is_delivered else "failed" if next_at is None else "pending"
    # A later try, begun because this one took too long, has the last word; but once delivered is delivered.
    is_current = WebhookEvent.num_deliveries == due.attempt
    session.execute(
        update(WebhookEvent)
        .where(WebhookEvent.id == due.event_id, WebhookEvent.state == "pending")
        .where(*([] if is_delivered else [is_current]))
        .values(state=state, next_delivery_at=next_at)
    )
    session.flush()
    return state
