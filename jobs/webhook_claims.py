"""What is sent next and what came of it: claims that are fair between destinations, and their records.

A destination has at most so many exchanges at once. One that failed five times in a row is paused, longer
each time, and then asked with one exchange; until it answers well its other events wait without being tried.
"""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Protocol
from uuid import UUID

from sqlalchemy import delete, func, insert, select, text, update
from sqlalchemy.dialects import postgresql
from sqlalchemy.orm import Session

from jobs import webhook_endpoints, webhook_secrets
from jobs.database import database_now
from jobs.models import JsonObject
from jobs.settings import WebhookSettings
from jobs.webhook_dispatches import MAX_AGE
from jobs.webhook_models import (
    WebhookBreaker,
    WebhookDelivery,
    WebhookDispatch,
    WebhookEndpoint,
    WebhookEvent,
)
from jobs.webhook_vault import Vault, VaultError
from jobs.webhooks import next_delivery_at

BREAKER_FAILURES: Final = 5  # in a row, until a destination is paused
_MAX_PAUSE: Final = timedelta(minutes=15)
_MAX_RETRY_AFTER: Final = timedelta(hours=24)  # the longest step of the schedule
_GONE: Final = 410  # the receiver wants nothing any more
# Above the exchange's own deadline: until then nobody else takes an event whose sender may have died.
_LEASE_MARGIN: Final = timedelta(seconds=10)
_LOCK: Final = 0x77686F6B  # "whok": claims are made one at a time, so that limits hold over all workers

# First every destination that waits, by jumping through the index; then of each as many as it has room for,
# in turns, so that one with a million events delays nobody.
_CHOOSE: Final = text(f"""
    WITH RECURSIVE waiting (id) AS (
        (SELECT destination_id FROM webhook_dispatches WHERE state = 'pending'
         ORDER BY destination_id LIMIT 1)
        UNION ALL
        SELECT (SELECT d.destination_id FROM webhook_dispatches d
                WHERE d.state = 'pending' AND d.destination_id > waiting.id
                ORDER BY d.destination_id LIMIT 1)
        FROM waiting WHERE waiting.id IS NOT NULL
    ), ready AS (
        SELECT waiting.id,
            CASE WHEN b.num_failures >= {BREAKER_FAILURES} THEN 1 ELSE :at_most END
            - (SELECT count(*) FROM webhook_dispatches s
               WHERE s.state = 'sending' AND s.destination_id = waiting.id) AS room
        FROM waiting LEFT JOIN webhook_breakers b ON b.destination_id = waiting.id
        WHERE waiting.id IS NOT NULL AND (b.paused_until IS NULL OR b.paused_until <= :now)
    )
    SELECT due.id FROM ready CROSS JOIN LATERAL (
        SELECT d.id, d.next_attempt_at, row_number() OVER (ORDER BY d.next_attempt_at) AS turn
        FROM (SELECT id, next_attempt_at FROM webhook_dispatches
              WHERE destination_id = ready.id AND state = 'pending' AND next_attempt_at <= :now
              ORDER BY next_attempt_at LIMIT greatest(ready.room, 0)) d
    ) due ORDER BY due.turn, due.next_attempt_at LIMIT :limit
""")  # noqa: S608  # numbers of ours


class Answer(Protocol):
    """What came of an exchange; exactly one of `status` and `error_code` is set."""

    @property
    def status(self) -> int | None:
        """Of HTTP."""

    @property
    def error_code(self) -> str | None:
        """Why there is none."""

    @property
    def num_bytes(self) -> int:
        """That were read."""

    @property
    def latency(self) -> timedelta:
        """From the beginning to the end."""

    @property
    def retry_after(self) -> timedelta | None:
        """When the receiver wants to be asked again."""


@dataclass(frozen=True, slots=True)
class Due:
    """An event that this process tells to one destination now.

    Attributes:
        body: exactly as it is sent; the same at each try.
        secrets: that sign it; none: they cannot be opened.
        attempt: this try's number, from 1.
        step: tries since it was queued or replayed, this one included.
        claimed_at: by the database's clock.
    """

    id: UUID
    tenant_id: UUID
    event_id: UUID
    event_type: str
    destination_id: UUID
    endpoint_id: UUID | None
    url: str
    body: bytes
    secrets: Sequence[str]
    attempt: int
    step: int
    queued_at: datetime
    claimed_at: datetime


def claim(session: Session, settings: WebhookSettings, vault: Vault, *, limit: int) -> list[Due]:
    """Up to so many events whose time has come, put off for everybody else until these tries must be over."""
    if limit < 1:
        return []
    session.execute(select(func.pg_advisory_xact_lock(_LOCK)))
    now = database_now(session)
    _take_back(session, now)
    asked = {"at_most": settings.endpoint_concurrency, "limit": limit, "now": now}
    chosen = session.scalars(_CHOOSE, asked).all()
    if not chosen:
        return []
    held = timedelta(seconds=settings.deadline_seconds) + _LEASE_MARGIN
    # Somebody may be about to replay or to fail one of them.
    free = select(WebhookDispatch.id).where(WebhookDispatch.id.in_(chosen)).with_for_update(skip_locked=True)
    taken = session.scalars(
        update(WebhookDispatch)
        .where(WebhookDispatch.id.in_(free.scalar_subquery()), WebhookDispatch.state == "pending")
        .values(
            state="sending",
            num_attempts=WebhookDispatch.num_attempts + 1,
            step=WebhookDispatch.step + 1,
            next_attempt_at=now + held,
        )
        .returning(WebhookDispatch)
        .execution_options(synchronize_session=False, populate_existing=True)
    ).all()
    order = {each: number for number, each in enumerate(chosen)}
    taken = sorted(taken, key=lambda dispatch: order[dispatch.id])
    return _load(session, taken, settings, vault, now)


def _take_back(session: Session, now: datetime) -> None:
    """What a sender that is gone had taken is due again, and costs no step of the schedule."""
    session.execute(
        update(WebhookDispatch)
        .where(WebhookDispatch.state == "sending", WebhookDispatch.next_attempt_at <= now)
        .values(state="pending", step=WebhookDispatch.step - 1)
        .execution_options(synchronize_session=False)
    )


def _load(
    session: Session, taken: Sequence[WebhookDispatch], settings: WebhookSettings, vault: Vault, now: datetime
) -> list[Due]:
    wanted = {each.event_id for each in taken}
    events = {
        each.id: each for each in session.scalars(select(WebhookEvent).where(WebhookEvent.id.in_(wanted)))
    }
    of = {each.endpoint_id for each in taken if each.endpoint_id}
    endpoints = {
        each.id: each for each in session.scalars(select(WebhookEndpoint).where(WebhookEndpoint.id.in_(of)))
    }
    known: dict[UUID, Sequence[str]] = {}

    def secrets_of(dispatch: WebhookDispatch) -> Sequence[str]:
        if dispatch.secret is not None:
            return [vault.open(dispatch.secret)]
        key = dispatch.endpoint_id or dispatch.tenant_id
        if key not in known:
            known[key] = (
                webhook_secrets.opened(endpoints[key], vault, now=now)
                if dispatch.endpoint_id
                else webhook_secrets.of_tenant(session, dispatch.tenant_id, settings, vault, now=now)
            ).valid()
        return known[key]

    due: list[Due] = []
    for each in taken:
        endpoint = endpoints.get(each.endpoint_id) if each.endpoint_id else None
        if endpoint is not None and endpoint.disabled_reason is not None:
            each.state, each.next_attempt_at = "failed", None  # disabled while the event was written
            continue
        try:
            signing = secrets_of(each)
        except VaultError:
            signing = []
        event = events[each.event_id]
        due.append(
            Due(
                id=each.id,
                tenant_id=each.tenant_id,
                event_id=each.event_id,
                event_type=event.type,
                destination_id=each.destination_id,
                endpoint_id=each.endpoint_id,
                url=(endpoint.url if endpoint else each.url) or "",
                body=_body(event, includes_output=each.includes_output),
                secrets=signing,
                attempt=each.num_attempts,
                step=each.step,
                queued_at=each.queued_at,
                claimed_at=now,
            )
        )
    session.flush()
    return due


def _body(event: WebhookEvent, *, includes_output: bool) -> bytes:
    payload: JsonObject = dict(event.payload or {})
    if includes_output and event.job_id is not None:
        data = payload["data"]
        assert isinstance(data, dict)  # noqa: S101  # written by `events`
        payload["data"] = {**data, "output": event.output}
    return json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode()


def record(
    session: Session,
    told: Sequence[tuple[Due, Answer]],
    settings: WebhookSettings,
    rng: random.Random,
) -> None:
    """Each try stands in the log; its event is delivered there, due again later, or given up."""
    if not told:
        return
    now = database_now(session)
    told = sorted(told, key=lambda each: each[0].id)  # in one order everywhere: no deadlock
    session.execute(insert(WebhookDelivery), [_logged(due, answer) for due, answer in told])
    good = [due for due, answer in told if is_delivered(answer)]
    bad = [(due, answer) for due, answer in told if not is_delivered(answer)]
    if good:
        # Final whoever says it, also of a try that was taken for dead.
        session.execute(
            update(WebhookDispatch)
            .where(WebhookDispatch.id.in_([due.id for due in good]))
            .values(state="delivered", next_attempt_at=None)
            .execution_options(synchronize_session=False)
        )
    for due, answer in bad:
        _put_off(session, due, answer, now=now, rng=rng)
    _count_failures(session, good, bad, settings, now=now, rng=rng)
    for endpoint_id in sorted(
        {due.endpoint_id for due, answer in bad if due.endpoint_id and answer.status == _GONE}
    ):
        webhook_endpoints.disable(session, endpoint_id, "gone", now=now)


def is_delivered(answer: Answer) -> bool:
    """Whether the receiver has acknowledged."""
    return answer.status is not None and 200 <= answer.status < 300


def outcome_of(answer: Answer) -> str:
    """`delivered`, or what went wrong."""
    return "delivered" if is_delivered(answer) else str(answer.error_code or "bad_status")


def _logged(due: Due, answer: Answer) -> Mapping[str, Any]:
    return {
        "tenant_id": due.tenant_id,
        "event_id": due.event_id,
        "endpoint_id": due.endpoint_id,
        "attempt": due.attempt,
        "status": answer.status,
        "outcome": outcome_of(answer),
        "num_bytes": answer.num_bytes,
        "latency_ms": round(answer.latency.total_seconds() * 1000),
    }


def _put_off(session: Session, due: Due, answer: Answer, *, now: datetime, rng: random.Random) -> None:
    """The event is due again by its schedule, or not before the receiver wants it, or is given up."""
    next_at = next_delivery_at(due.step, now, rng)
    if next_at is not None and answer.retry_after is not None:
        next_at = max(next_at, now + min(answer.retry_after, _MAX_RETRY_AFTER))
    if answer.status == _GONE or (next_at is not None and next_at > due.queued_at + MAX_AGE):
        next_at = None
    session.execute(
        update(WebhookDispatch)
        # A later try, begun because this one took too long, has the last word.
        .where(WebhookDispatch.id == due.id, WebhookDispatch.num_attempts == due.attempt)
        .where(WebhookDispatch.state == "sending")
        .values(state="failed" if next_at is None else "pending", next_attempt_at=next_at)
        .execution_options(synchronize_session=False)
    )


def _count_failures(
    session: Session,
    good: Sequence[Due],
    bad: Sequence[tuple[Due, Answer]],
    settings: WebhookSettings,
    *,
    now: datetime,
    rng: random.Random,
) -> None:
    """Who answered well has no failures any more; who did not has more, and may be paused or disabled."""
    well = {due.destination_id for due in good}
    if well:
        session.execute(delete(WebhookBreaker).where(WebhookBreaker.destination_id.in_(sorted(well))))
    failures: dict[UUID, list[tuple[Due, Answer]]] = {}
    for due, answer in bad:
        if due.destination_id not in well:
            failures.setdefault(due.destination_id, []).append((due, answer))
    for destination_id in sorted(failures):
        _fail(session, destination_id, failures[destination_id], settings, now=now, rng=rng)


def _fail(
    session: Session,
    destination_id: UUID,
    failed: Sequence[tuple[Due, Answer]],
    settings: WebhookSettings,
    *,
    now: datetime,
    rng: random.Random,
) -> None:
    due = failed[0][0]
    new = postgresql.insert(WebhookBreaker).values(
        destination_id=destination_id,
        tenant_id=due.tenant_id,
        num_failures=len(failed),
        failing_since=now,
    )
    breaker = session.scalars(
        new.on_conflict_do_update(
            index_elements=["destination_id"],
            set_={"num_failures": WebhookBreaker.num_failures + len(failed)},
        ).returning(WebhookBreaker),
        execution_options={"populate_existing": True},
    ).one()
    pause = timedelta(0)
    if breaker.num_failures >= BREAKER_FAILURES:
        doubled = min(breaker.num_failures - BREAKER_FAILURES, 10)
        pause = min(_MAX_PAUSE, timedelta(seconds=settings.breaker_seconds) * 2**doubled)
        pause *= rng.uniform(0.8, 1.2)
    asked = [answer.retry_after for _, answer in failed if answer.retry_after is not None]
    pause = max([pause, *(min(each, _MAX_PAUSE) for each in asked)])
    breaker.paused_until = now + pause if pause else None
    session.flush()
    is_lost = now - breaker.failing_since >= timedelta(days=settings.disable_days)
    if due.endpoint_id and breaker.num_failures >= BREAKER_FAILURES and is_lost:
        webhook_endpoints.disable(session, due.endpoint_id, "failing", now=now)
