"""What is sent next: claims that are fair between destinations.

A destination has at most so many exchanges at once. One that failed five times in a row is paused, longer
each time, and then asked with one exchange; until it answers well its other events wait without being tried.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, cast
from uuid import UUID

from sqlalchemy import Row, text, update
from sqlalchemy.orm import Session

from jobs import webhook_secrets
from jobs.models import JsonObject
from jobs.settings import WebhookSettings
from jobs.webhook_models import WebhookDispatch
from jobs.webhook_secrets import Replaceable, Secrets
from jobs.webhook_vault import Vault, VaultError

BREAKER_FAILURES: Final = 5  # in a row, until a destination is paused
# Above the exchange's own deadline: until then nobody else takes an event whose sender may have died.
_LEASE_MARGIN: Final = timedelta(seconds=10)
_LOCK: Final = 0x77686F6B  # "whok": claims are made one at a time, so that limits hold over all workers

# One statement, as it must see what others committed before it had the lock: what a sender that is gone had
# taken is due again, and costs no step of the schedule.
_LOCK_AND_TAKE_BACK: Final = text("""
    WITH locked AS MATERIALIZED (SELECT pg_advisory_xact_lock(:key)), taken_back AS (
        UPDATE webhook_dispatches SET state = 'pending', step = step - 1
        WHERE state = 'sending' AND next_attempt_at <= clock_timestamp()
    )
    SELECT clock_timestamp() FROM locked
""")

# First every destination that waits, by jumping through the index; then of each as many as it has room for,
# in turns, so that one with a million events delays nobody. Somebody may be about to replay or to fail one.
_CLAIM: Final = text(f"""
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
    ), chosen AS (
        SELECT due.id, due.turn FROM ready CROSS JOIN LATERAL (
            SELECT d.id, d.next_attempt_at, row_number() OVER (ORDER BY d.next_attempt_at) AS turn
            FROM (SELECT id, next_attempt_at FROM webhook_dispatches
                  WHERE destination_id = ready.id AND state = 'pending' AND next_attempt_at <= :now
                  ORDER BY next_attempt_at LIMIT greatest(ready.room, 0)) d
        ) due ORDER BY due.turn, due.next_attempt_at LIMIT :limit
    ), free AS (
        SELECT id FROM webhook_dispatches WHERE id IN (SELECT id FROM chosen) AND state = 'pending'
        FOR UPDATE SKIP LOCKED
    ), taken AS (
        UPDATE webhook_dispatches
        SET state = 'sending', num_attempts = num_attempts + 1, step = step + 1, next_attempt_at = :until
        WHERE id IN (SELECT id FROM free)
        RETURNING id, tenant_id, event_id, destination_id, endpoint_id, url, secret AS own_secret,
            includes_output, num_attempts, step, queued_at
    )
    SELECT taken.*, e.type AS event_type, e.payload,
        CASE WHEN taken.includes_output THEN e.output END AS output,
        e.job_id IS NOT NULL AS is_about_job, p.url AS endpoint_url, p.disabled_reason, p.secret,
        p.old_secret, p.old_secret_expires_at
    FROM taken JOIN chosen ON chosen.id = taken.id JOIN webhook_events e ON e.id = taken.event_id
        LEFT JOIN webhook_endpoints p ON p.id = taken.endpoint_id
    ORDER BY chosen.turn, taken.queued_at
""")  # noqa: S608  # numbers of ours


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
    now: datetime = session.execute(_LOCK_AND_TAKE_BACK, {"key": _LOCK}).scalar_one()
    held = timedelta(seconds=settings.deadline_seconds) + _LEASE_MARGIN
    asked = {
        "at_most": settings.endpoint_concurrency,
        "limit": limit,
        "now": now,
        "until": now + held,
    }
    taken = session.execute(_CLAIM, asked).all()
    opened = _Opened(session, settings, vault, now)
    due: list[Due] = []
    for row in taken:
        if row.disabled_reason is not None:
            _drop(session, row.id)  # disabled while the event was written
            continue
        due.append(
            Due(
                id=row.id,
                tenant_id=row.tenant_id,
                event_id=row.event_id,
                event_type=row.event_type,
                destination_id=row.destination_id,
                endpoint_id=row.endpoint_id,
                url=row.endpoint_url or row.url or "",
                body=_body(row),
                secrets=opened.secrets_of(row),
                attempt=row.num_attempts,
                step=row.step,
                queued_at=row.queued_at,
                claimed_at=now,
            )
        )
    return due


@dataclass(slots=True)
class _Opened:
    """The secrets that sign, each opened once for a claim."""

    session: Session
    settings: WebhookSettings
    vault: Vault
    now: datetime
    known: dict[UUID, Sequence[str]] = field(default_factory=dict)

    def secrets_of(self, row: Row[Any]) -> Sequence[str]:
        """Those of the job or batch, of the endpoint, or of the tenant; none where they cannot be opened."""
        try:
            if row.own_secret is not None:
                return [self.vault.open(row.own_secret)]
            key = row.endpoint_id or row.tenant_id
            if key not in self.known:
                self.known[key] = self._open(row).valid()
            return self.known[key]
        except VaultError:
            return []

    def _open(self, row: Row[Any]) -> Secrets:
        if row.endpoint_id is not None:
            replaceable: Replaceable = cast("Any", row)
            return webhook_secrets.opened(replaceable, self.vault, now=self.now)
        return webhook_secrets.of_tenant(self.session, row.tenant_id, self.settings, self.vault, now=self.now)


def _drop(session: Session, dispatch_id: UUID) -> None:
    session.execute(
        update(WebhookDispatch)
        .where(WebhookDispatch.id == dispatch_id)
        .values(state="failed", next_attempt_at=None)
        .execution_options(synchronize_session=False)
    )


def _body(row: Row[Any]) -> bytes:
    payload: JsonObject = dict(row.payload or {})
    if row.includes_output and row.is_about_job:
        data = payload["data"]
        assert isinstance(data, dict)  # noqa: S101  # written by `events`
        payload["data"] = {**data, "output": row.output}
    return json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode()
