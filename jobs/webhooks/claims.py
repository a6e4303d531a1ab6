"""Claims: reserve the deliveries due next for one process, until their exchanges must be over."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, cast
from uuid import UUID

from sqlalchemy import Row, text
from sqlalchemy.orm import Session

from jobs import ids, telemetry
from jobs.database.advisory_locks import Lock
from jobs.database.sealed_columns import sealer_in
from jobs.models import JsonObject
from jobs.models.output import OUTPUT
from jobs.sealing.content import ContentSealer
from jobs.settings import WebhookSettings
from jobs.webhooks import destinations, fairness, fanout, secrets
from jobs.webhooks.fairness import Slots
from jobs.webhooks.secrets import Replaceable, Secrets
from jobs.webhooks.vault import Vault, VaultError, VaultSealError

# Beyond the exchange's own deadline: until then no other process takes an event whose sender may have died.
_LEASE_MARGIN: Final = timedelta(seconds=10)
MAX_LOST: Final = 10  # senders in a row that end without an outcome before their event is given up
_MAX_LOST_AT_ONCE: Final = 1000

_LOCK_FIRST: Final = text("""
    WITH locked AS MATERIALIZED (SELECT pg_advisory_xact_lock(:key))
    SELECT clock_timestamp() AS now, ARRAY(
        SELECT id FROM webhook_dispatches WHERE state = 'sending' AND next_attempt_at <= clock_timestamp()
        LIMIT :most
    ) AS lost FROM locked
""")

# Costs no step of the schedule, but does not go on forever: the event itself may be what crashes its senders.
_TAKE_BACK: Final = text(f"""
    UPDATE webhook_dispatches SET step = step - 1, num_lost = num_lost + 1, is_noticed = false,
        state = CASE WHEN num_lost < {MAX_LOST} THEN 'pending' ELSE 'failed' END,
        next_attempt_at = CASE WHEN num_lost < {MAX_LOST} THEN next_attempt_at END
    WHERE id = ANY(CAST(:ids AS uuid[])) AND state = 'sending' AND next_attempt_at <= clock_timestamp()
    RETURNING id, tenant_id, event_id, state
""")  # noqa: S608  # a number of ours

# Skips a dispatch that another transaction may be about to replay or to fail.
_TAKE: Final = text("""
    WITH free AS (
        SELECT id FROM webhook_dispatches WHERE id = ANY(CAST(:ids AS uuid[])) AND state = 'pending'
        FOR UPDATE SKIP LOCKED
    ), taken AS (
        UPDATE webhook_dispatches
        SET state = 'sending', num_attempts = num_attempts + 1, step = step + 1, next_attempt_at = :until
        WHERE id IN (SELECT id FROM free)
        RETURNING id, tenant_id, event_id, destination_id, endpoint_id, url, secret AS own_secret,
            includes_output, num_attempts, step, queued_at
    )
    SELECT taken.*, e.type AS event_type, e.payload, e.traceparent,
        CASE WHEN taken.includes_output THEN e.output END AS output,
        e.job_id IS NOT NULL AS is_about_job, p.url AS endpoint_url, p.disabled_reason, p.secret,
        p.old_secret, p.old_secret_expires_at
    FROM taken JOIN webhook_events e ON e.id = taken.event_id
        LEFT JOIN webhook_endpoints p ON p.id = taken.endpoint_id
    ORDER BY array_position(CAST(:ids AS uuid[]), taken.id)
""")


@dataclass(frozen=True, slots=True)
class ClaimedDispatch:
    """A dispatch that this process holds: an event to deliver to one destination now.

    Attributes:
        body: exactly as it is sent; the same on every attempt.
        secrets: that sign it; empty: they cannot be decrypted.
        attempt: number of this attempt, from 1.
        step: attempts since it was queued or replayed, this one included.
        claimed_at: by the database's clock.
        traceparent: of the span above that of this attempt; None: the event has no trace.
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
    traceparent: str | None = None


def claim(
    session: Session, settings: WebhookSettings, vault: Vault, slots: Slots, *, freed: Collection[UUID] = ()
) -> list[ClaimedDispatch]:
    """Claim due events, so that no other process sends them meanwhile.

    Args:
        session: the caller's transaction, for claims alone.
        settings: of this process.
        vault: decrypts the signing secrets.
        slots: of this process.
        freed: destinations whose exchanges in this process have ended since the last claim.
    """
    now, lost = lock(session)
    take_back(session, lost)
    new = destinations.schedule_new(session, freed, now=now)
    if slots.num_free < 1:
        destinations.update_due_times(session, new, {})
        return []
    chosen = fairness.choose(session, settings, slots, now=now)
    rows = take(session, chosen.dispatches, settings, now=now) if chosen.dispatches else []
    taken = {row.id for row in rows}
    left = [each for each in new if each.id not in taken]
    destinations.update_due_times(session, left, chosen.not_before)
    opened = _Opened(session, settings, vault, now)
    found = (_claimed(session, row, opened) for row in rows)
    return [dispatch for dispatch in found if dispatch is not None]


def lock(session: Session) -> tuple[datetime, Sequence[UUID]]:
    """Take the lock of claims; the next statement sees everything committed before.

    Returns: the database's time, and dispatches whose senders are presumed dead.
    """
    row = session.execute(_LOCK_FIRST, {"key": Lock.WEBHOOKS.value, "most": _MAX_LOST_AT_ONCE}).one()
    return row.now, row.lost


def take_back(session: Session, lost: Sequence[UUID]) -> None:
    """Make dispatches of dead senders due again; after `MAX_LOST` in a row, fail them."""
    if not lost:
        return
    for row in session.execute(_TAKE_BACK, {"ids": lost}):
        if row.state == "failed":
            log_given_up(row.id, row.event_id, row.tenant_id, reason="senders_lost")


def take(
    session: Session, chosen: Sequence[UUID], settings: WebhookSettings, *, now: datetime
) -> Sequence[Row[Any]]:
    """Reserve these dispatches for one sender; return what it needs to send, in order."""
    held = timedelta(seconds=settings.deadline_seconds) + _LEASE_MARGIN
    return session.execute(_TAKE, {"ids": chosen, "until": now + held}).all()


def log_given_up(dispatch_id: UUID, event_id: UUID, tenant_id: UUID, *, reason: str) -> None:
    """Log that an event is given up although its receiver did not refuse it."""
    telemetry.logger().error(
        telemetry.WEBHOOK_GIVEN_UP,
        dispatch_id=str(dispatch_id),
        event_id=ids.event_id(event_id),
        tenant_id=str(tenant_id),
        reason=reason,
    )


def _claimed(session: Session, row: Row[Any], opened: "_Opened") -> ClaimedDispatch | None:
    """Build the delivery; None: its endpoint is disabled or its content unreadable."""
    if row.disabled_reason is not None:  # disabled while the event was being written
        fanout.give_up(session, [row.id])
        return None
    try:
        body = _body(row, sealer_in(session))
    except Exception:  # noqa: BLE001  # one broken event must not stop the others
        log_given_up(row.id, row.event_id, row.tenant_id, reason="unreadable")
        fanout.give_up(session, [row.id])
        return None
    return ClaimedDispatch(
        id=row.id,
        tenant_id=row.tenant_id,
        event_id=row.event_id,
        event_type=row.event_type,
        destination_id=row.destination_id,
        endpoint_id=row.endpoint_id,
        url=row.endpoint_url or row.url or "",
        body=body,
        secrets=opened.secrets_of(row),
        attempt=row.num_attempts,
        step=row.step,
        queued_at=row.queued_at,
        claimed_at=opened.now,
        traceparent=row.traceparent,
    )


@dataclass(slots=True)
class _Opened:
    """The signing secrets, each decrypted once per claim."""

    session: Session
    settings: WebhookSettings
    vault: Vault
    now: datetime
    known: dict[UUID, Sequence[str]] = field(default_factory=dict)

    def secrets_of(self, row: Row[Any]) -> Sequence[str]:
        """Return the secrets of the job or batch, the endpoint, or the tenant.

        Empty if they cannot be decrypted.
        """
        try:
            if row.own_secret is not None:
                return [self.vault.open(row.own_secret)]
            key = row.endpoint_id or row.tenant_id
            if key not in self.known:
                self.known[key] = self._open(row).valid()
            return self.known[key]
        except (VaultError, VaultSealError):
            return []

    def _open(self, row: Row[Any]) -> Secrets:
        if row.endpoint_id is not None:
            replaceable: Replaceable = cast("Any", row)
            return secrets.opened(replaceable, self.vault, now=self.now)
        return secrets.of_tenant(self.session, row.tenant_id, self.settings, self.vault, now=self.now)


def _body(row: Row[Any], sealer: ContentSealer) -> bytes:
    payload: JsonObject = dict(row.payload or {})
    if row.includes_output and row.is_about_job:
        data = payload["data"]
        assert isinstance(data, dict)  # noqa: S101  # written by the outbox
        output = None if row.output is None else sealer.open_text(row.output, OUTPUT.place)
        payload["data"] = {**data, "output": output}
    return json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode()
