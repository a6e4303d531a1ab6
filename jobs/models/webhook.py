"""The tables of webhooks: what happened, whom it is told to, on which way it is, and every try to tell it."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ForeignKey,
    Index,
    SmallInteger,
    Text,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.orm import Mapped, mapped_column

from jobs.database.base import Base, JsonObject, one_of
from jobs.ids import uuid7

DISPATCH_STATES = ("delivered", "failed", "pending", "sending")
DISABLED_REASONS = ("failing", "gone", "owner")


class WebhookEvent(Base):
    """Something that happened to a job, a batch or an endpoint, written in the transaction that made it so.

    Attributes:
        endpoint_id: of a test, or of an endpoint that was disabled; without a foreign key: events outlive it.
        payload: the body to deliver, a snapshot; None where nobody could ask for it.
        output: what the job produced, where somebody asked for it and it is small.
        url, state, num_deliveries, next_delivery_at: of the release before, whose processes deliver from
            here; what they leave pending is taken over (`fanout.adopt`).
    """

    __tablename__ = "webhook_events"
    __table_args__ = (
        # job_id carries no foreign key: an event outlives a job that its owner deletes.
        UniqueConstraint("job_id", "type"),
        UniqueConstraint("batch_id", "type"),
        UniqueConstraint("summary_id", "type"),
        CheckConstraint("num_nonnulls(job_id, batch_id, endpoint_id, summary_id) = 1", name="one_subject"),
        CheckConstraint(one_of("state", ["delivered", "failed", "none", "pending"]), name="state"),
        CheckConstraint("(state = 'none') = (url IS NULL)", name="url_iff_asked"),
        CheckConstraint("(state = 'pending') = (next_delivery_at IS NOT NULL)", name="next_iff_pending"),
        Index("ix_webhook_events_pending", "next_delivery_at", postgresql_where=text("state = 'pending'")),
        Index("ix_webhook_events_created_at", "created_at"),
        # Replays: what an endpoint could have been told.
        Index(
            "ix_webhook_events_told",
            "tenant_id",
            "created_at",
            postgresql_where=text("payload IS NOT NULL"),
        ),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid7)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"))
    job_id: Mapped[UUID | None]
    batch_id: Mapped[UUID | None]
    summary_id: Mapped[UUID | None]
    endpoint_id: Mapped[UUID | None]
    type: Mapped[str]
    url: Mapped[str | None]
    payload: Mapped[JsonObject | None] = mapped_column(JSONB(none_as_null=True))
    output: Mapped[str | None]
    state: Mapped[str] = mapped_column(server_default="none")
    num_deliveries: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    next_delivery_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())


class WebhookEndpoint(Base):
    """Where a tenant wants to be told, and of what.

    Attributes:
        events: types of events; `*` stands for all that are not told on request alone.
        includes_output: small outputs come with the event.
        secret: sealed (see `webhooks.vault`).
        old_secret: signs too until `old_secret_expires_at`.
        disabled_reason: gone (it answered 410), failing (for days), owner; None: it is told.
        deleted_at: when its owner deleted it; nobody sees it from then on, and its rows go in parts.
    """

    __tablename__ = "webhook_endpoints"
    __table_args__ = (
        CheckConstraint("cardinality(events) >= 1", name="events"),
        CheckConstraint("(old_secret IS NULL) = (old_secret_expires_at IS NULL)", name="old_secret_expires"),
        CheckConstraint("(disabled_reason IS NULL) = (disabled_at IS NULL)", name="disabled"),
        CheckConstraint(one_of("disabled_reason", DISABLED_REASONS), name="disabled_reason"),
        CheckConstraint("deleted_at IS NULL OR disabled_at IS NOT NULL", name="deleted_is_disabled"),
        Index("ix_webhook_endpoints_tenant", "tenant_id", "id"),
        Index("ix_webhook_endpoints_deleted", "deleted_at", postgresql_where=text("deleted_at IS NOT NULL")),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid7)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"))
    url: Mapped[str]
    description: Mapped[str] = mapped_column(server_default="")
    events: Mapped[list[str]] = mapped_column(ARRAY(Text))
    includes_output: Mapped[bool] = mapped_column(server_default=text("false"))
    secret: Mapped[bytes]
    old_secret: Mapped[bytes | None]
    old_secret_expires_at: Mapped[datetime | None]
    disabled_reason: Mapped[str | None]
    disabled_at: Mapped[datetime | None]
    deleted_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())


class WebhookSecret(Base):
    """What a tenant's deliveries are signed with where neither job, batch nor endpoint has a secret.

    Attributes:
        secret, old_secret, old_secret_expires_at: as an endpoint's.
    """

    __tablename__ = "webhook_secrets"
    __table_args__ = (
        CheckConstraint("(old_secret IS NULL) = (old_secret_expires_at IS NULL)", name="old_secret_expires"),
    )

    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"), primary_key=True)
    secret: Mapped[bytes]
    old_secret: Mapped[bytes | None]
    old_secret_expires_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())


class WebhookDispatch(Base):
    """One event on its way to one destination: the truth about what still has to be told.

    Attributes:
        destination_id: the endpoint's id; for a job's or batch's own URL one made of tenant and server.
        endpoint_id: None: a job's or batch's own URL.
        url: where to, for those.
        secret: sealed, where the job or batch has one of its own.
        includes_output: the event's output is sent along.
        num_attempts: tries so far; the fence of what a sender writes.
        step: tries since it was queued, or replayed: how far the schedule has come.
        num_lost: senders in a row that ended without an outcome.
        num_replays: how often its tenant has replayed it.
        is_noticed: its destination's `next_due_at` takes it into account, once it is pending; written False
            with every change to pending, and True by claims alone.
        queued_at: when it was queued or replayed last.
        next_attempt_at: pending: not before; sending: from then on its sender is taken for dead.
    """

    __tablename__ = "webhook_dispatches"
    __table_args__ = (
        UniqueConstraint("event_id", "destination_id"),
        CheckConstraint(one_of("state", DISPATCH_STATES), name="state"),
        CheckConstraint("(endpoint_id IS NULL) = (url IS NOT NULL)", name="one_destination"),
        CheckConstraint(
            "(state IN ('pending', 'sending')) = (next_attempt_at IS NOT NULL)", name="next_iff_open"
        ),
        # The literal state lets these be found.
        Index(
            "ix_webhook_dispatches_pending",
            "destination_id",
            "next_attempt_at",
            postgresql_where=text("state = 'pending'"),
        ),
        Index(
            "ix_webhook_dispatches_unnoticed",
            "tenant_id",
            "id",
            postgresql_where=text("state = 'pending' AND NOT is_noticed"),
        ),
        Index("ix_webhook_dispatches_sending", "destination_id", postgresql_where=text("state = 'sending'")),
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
    """Where a tenant's events go: when the next of them is due there. Claims alone change the time.

    Attributes:
        id: as in dispatches.
        server_id: made of tenant, scheme, host and port: destinations that share it share its slots.
        next_due_at: of its first pending dispatch, or later while it is paused or has no room; None: no
            dispatch that a claim has noticed waits.
        named_at: when a request named it last, within minutes; or when it was first seen.
    """

    __tablename__ = "webhook_destinations"
    __table_args__ = (
        Index(
            "ix_webhook_destinations_due",
            "tenant_id",
            "next_due_at",
            postgresql_where=text("next_due_at IS NOT NULL"),
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
    """A destination that fails now; its first success takes the row away.

    Attributes:
        num_failures: in a row.
        failing_since: when the first of them was.
        paused_until: nothing is sent there before.
    """

    __tablename__ = "webhook_breakers"
    __table_args__ = (CheckConstraint("num_failures >= 1", name="num_failures"),)

    destination_id: Mapped[UUID] = mapped_column(primary_key=True)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"))
    num_failures: Mapped[int]
    failing_since: Mapped[datetime]
    paused_until: Mapped[datetime | None]


class WebhookDelivery(Base):
    """One try to tell an event.

    Attributes:
        tenant_id: None in rows of the release before.
        endpoint_id: None: a job's or batch's own URL, or an endpoint that is gone.
        attempt: None in rows that `attempt_before` numbers.
        attempt_before: the number in rows of releases whose log could not count beyond 32,767.
        status: HTTP status, or None when there was no answer.
        outcome: `delivered`, or a code that says what went wrong.
        num_bytes: size of the answer that was read; its content is not kept.
        latency_ms: wall-clock time of the exchange.
    """

    __tablename__ = "webhook_deliveries"
    __table_args__ = (
        CheckConstraint("num_nonnulls(attempt, attempt_before) = 1", name="one_attempt"),
        Index("ix_webhook_deliveries_event_id", "event_id"),
        Index("ix_webhook_deliveries_tenant", "tenant_id", "id"),
        # Lists: each row is in one of the first two, so that a rare outcome is found in a long log.
        Index(
            "ix_webhook_deliveries_failed", "tenant_id", "id", postgresql_where=text("outcome <> 'delivered'")
        ),
        Index(
            "ix_webhook_deliveries_delivered",
            "tenant_id",
            "id",
            postgresql_where=text("outcome = 'delivered'"),
        ),
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
