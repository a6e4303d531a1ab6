"""The tables of webhook deliveries: dispatches, their destinations, breakers, and the log of attempts."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ForeignKey,
    Index,
    SmallInteger,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from jobs.database.base import Base, one_of, partial_index
from jobs.ids import uuid7

DISPATCH_STATES = ("delivered", "failed", "pending", "sending")


class WebhookDispatch(Base):
    """One event on its way to one destination: the record of what must still be delivered.

    `fanout` writes it with its event, `claims` reserves it for a sender, `results` records the outcome, and
    `endpoints` replays it. Deleted with its event or its endpoint.

    Attributes:
        id: UUIDv7, random for replays.
        tenant_id: the owner.
        event_id: the event.
        destination_id: the endpoint's id; for the own URL of a job, batch or summary the id of its server,
            made from tenant, scheme, host and port. One dispatch per event and destination.
        endpoint_id: the endpoint. Null: an own URL.
        url: the own URL. Null for endpoints.
        secret: sealed secret that the job, batch or summary brought. Null: the endpoint's or the tenant's
            default signs.
        includes_output: the delivery carries the event's output.
        state: `pending` until a claim takes it, `sending` while a sender has it, then `delivered`, `pending`
            again for a later attempt, or `failed` if it is given up. A replay makes it `pending` again.
        num_attempts: attempts so far, never reset. It fences what a sender writes.
        step: attempts since it was queued or replayed: how far the retry schedule has come. A lost sender
            costs no step.
        num_lost: senders in a row that ended without an outcome; after `claims.MAX_LOST` it fails.
        num_replays: how often its tenant has replayed it, up to `replays.MAX_REPLAYS`.
        is_noticed: its destination's `next_due_at` takes it into account. Every change to `pending` sets it
            to false (of several at once for one destination, one suffices); only claims set it to true.
        queued_at: when it was queued or last replayed.
        next_attempt_at: while pending, no attempt before this; while sending, the time from which its sender
            counts as dead. Null once delivered or failed.
    """

    __tablename__ = "webhook_dispatches"
    __table_args__ = (
        UniqueConstraint("event_id", "destination_id"),
        CheckConstraint(one_of("state", DISPATCH_STATES), name="state"),
        CheckConstraint("(endpoint_id IS NULL) = (url IS NOT NULL)", name="one_destination"),
        CheckConstraint(
            "(state IN ('pending', 'sending')) = (next_attempt_at IS NOT NULL)", name="next_iff_open"
        ),
        # The literal state lets the planner use these.
        partial_index(
            "ix_webhook_dispatches_pending", "destination_id", "next_attempt_at", where="state = 'pending'"
        ),
        partial_index(
            "ix_webhook_dispatches_unnoticed", "tenant_id", "id", where="state = 'pending' AND NOT is_noticed"
        ),
        partial_index("ix_webhook_dispatches_sending", "destination_id", where="state = 'sending'"),
        Index("ix_webhook_dispatches_endpoint_id", "endpoint_id"),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid7)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"))
    event_id: Mapped[UUID] = mapped_column(ForeignKey("webhook_events.id", ondelete="CASCADE"))
    destination_id: Mapped[UUID]
    endpoint_id: Mapped[UUID | None] = mapped_column(ForeignKey("webhook_endpoints.id", ondelete="CASCADE"))
    url: Mapped[str | None]
    secret: Mapped[bytes | None]
    includes_output: Mapped[bool] = mapped_column(server_default=text("false"))
    state: Mapped[str]
    num_attempts: Mapped[int] = mapped_column(server_default="0")
    step: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    num_lost: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    num_replays: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    is_noticed: Mapped[bool] = mapped_column(server_default=text("false"))
    queued_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    next_attempt_at: Mapped[datetime | None]


class WebhookDestination(Base):
    """Where a tenant's events go, and when the next one is due there. Only claims change that time.

    Idle destinations are removed once no request has named them for a while.

    Attributes:
        id: as in dispatches.
        tenant_id: the tenant. Deleted with it.
        server_id: made from tenant, scheme, host and port. Destinations with the same one share its slots.
        next_due_at: when its first pending dispatch is due, or later while it is paused or its slots are
            full. Null: no noticed dispatch waits.
        named_at: when a request last named it, within ten minutes; at first when it was first seen.
    """

    __tablename__ = "webhook_destinations"
    __table_args__ = (
        partial_index(
            "ix_webhook_destinations_due", "tenant_id", "next_due_at", where="next_due_at IS NOT NULL"
        ),
        Index("ix_webhook_destinations_tenant", "tenant_id"),
        Index("ix_webhook_destinations_server", "server_id"),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"))
    server_id: Mapped[UUID]
    next_due_at: Mapped[datetime | None]
    named_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())


class WebhookBreaker(Base):
    """A destination that is failing. `results` writes it; the first success deletes it.

    Attributes:
        destination_id: as in dispatches.
        tenant_id: the tenant. Deleted with it.
        num_failures: failed attempts in a row, at least 1.
        failing_since: when the first of them failed; a failure of the operator's proxy begins it anew.
        paused_until: nothing is sent there before this: after five failures in a row, or as long as the
            receiver asked by `Retry-After`. Null: not paused.
    """

    __tablename__ = "webhook_breakers"
    __table_args__ = (CheckConstraint("num_failures >= 1", name="num_failures"),)

    destination_id: Mapped[UUID] = mapped_column(primary_key=True)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"))
    num_failures: Mapped[int]
    failing_since: Mapped[datetime]
    paused_until: Mapped[datetime | None]


class WebhookDelivery(Base):
    """One attempt at a delivery. `results` writes it once; deleted with its event.

    Attributes:
        id: UUIDv7.
        tenant_id: the owner. Null in rows of the release before.
        event_id: the event.
        endpoint_id: the endpoint, which may be deleted by now. Null: the own URL of a job, batch or summary.
        attempt: number of the attempt, from 1. Null in rows that `attempt_before` numbers.
        attempt_before: number in rows of releases whose log could not count beyond 32,767. Null in newer
            rows.
        status: HTTP status of the answer. Null if none came.
        outcome: `delivered`, or a code for what went wrong.
        num_bytes: bytes of the answer that were read; its content is not kept.
        latency_ms: duration of the exchange in milliseconds.
        created_at: when the outcome was recorded.
    """

    __tablename__ = "webhook_deliveries"
    __table_args__ = (
        CheckConstraint("num_nonnulls(attempt, attempt_before) = 1", name="one_attempt"),
        Index("ix_webhook_deliveries_event_id", "event_id"),
        Index("ix_webhook_deliveries_tenant", "tenant_id", "id"),
        # Lists: each row is in one of the first two, so that a rare outcome is found fast in a long log.
        partial_index("ix_webhook_deliveries_failed", "tenant_id", "id", where="outcome <> 'delivered'"),
        partial_index("ix_webhook_deliveries_delivered", "tenant_id", "id", where="outcome = 'delivered'"),
        Index("ix_webhook_deliveries_endpoint", "endpoint_id", "id"),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid7)
    tenant_id: Mapped[UUID | None] = mapped_column(ForeignKey("tenants.id"))
    event_id: Mapped[UUID] = mapped_column(ForeignKey("webhook_events.id", ondelete="CASCADE"))
    endpoint_id: Mapped[UUID | None]
    attempt: Mapped[int | None]
    attempt_before: Mapped[int | None] = mapped_column(SmallInteger)
    status: Mapped[int | None]
    outcome: Mapped[str]
    num_bytes: Mapped[int] = mapped_column(BigInteger, server_default="0")
    latency_ms: Mapped[int]
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
