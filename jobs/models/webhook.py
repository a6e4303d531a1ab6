"""The tables of webhooks: events, the endpoints that want them, and the secrets that sign them."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import CheckConstraint, ForeignKey, Index, SmallInteger, Text, UniqueConstraint, func, text
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.orm import Mapped, mapped_column

from jobs.database.base import Base, JsonObject, one_of, partial_index
from jobs.ids import uuid7
from jobs.models.output import OUTPUT

DISABLED_REASONS = ("failing", "gone", "owner")


class WebhookEvent(Base):
    """Something that happened to a job, a batch, a summary or an endpoint.

    `webhooks.outbox` writes it in the transaction that made it happen, with a dispatch for each destination.
    It is pruned after the jobs' retention once no dispatch is open. Of the four ids of a subject exactly one
    is set; none has a foreign key, as events outlive what they are about.

    Attributes:
        id: UUIDv7; receivers see it.
        tenant_id: the owner.
        job_id: the job. One event per job and type.
        batch_id: the batch. One event per batch and type.
        summary_id: the summary. One event per summary and type.
        endpoint_id: the endpoint that was tested or disabled.
        type: such as `job.completed`; see `rules.EVENT_TYPES`.
        url: as the release before wrote it, see `state`. Null in events of this release.
        payload: the body to deliver, a snapshot. Null if the tenant had no destination that could want it;
            such an event cannot be replayed.
        output: the job's output as its result stores it, if a destination includes it and it is at most
            16 KiB. Null otherwise.
        state: `none` in events of this release. Processes of the release before deliver from these columns;
            what they leave `pending` becomes a dispatch (`fanout.adopt`).
        num_deliveries: attempts of the release before; 0 in events of this release.
        next_delivery_at: when the release before delivers next. Null unless `pending`.
        traceparent: the span above those of its deliveries, as W3C Trace Context writes it. Null: it has no
            trace.
        created_at: when it happened, by the database's clock.
    """

    __tablename__ = "webhook_events"
    __table_args__ = (
        UniqueConstraint("job_id", "type"),
        UniqueConstraint("batch_id", "type"),
        UniqueConstraint("summary_id", "type"),
        CheckConstraint("num_nonnulls(job_id, batch_id, endpoint_id, summary_id) = 1", name="one_subject"),
        CheckConstraint(one_of("state", ["delivered", "failed", "none", "pending"]), name="state"),
        CheckConstraint("(state = 'none') = (url IS NULL)", name="url_iff_asked"),
        CheckConstraint("(state = 'pending') = (next_delivery_at IS NOT NULL)", name="next_iff_pending"),
        partial_index("ix_webhook_events_pending", "next_delivery_at", where="state = 'pending'"),
        Index("ix_webhook_events_created_at", "created_at"),
        # Replays: events that an endpoint could have received.
        partial_index("ix_webhook_events_told", "tenant_id", "created_at", where="payload IS NOT NULL"),
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
    output: Mapped[str | None] = mapped_column(OUTPUT, deferred=True)
    state: Mapped[str] = mapped_column(server_default="none")
    num_deliveries: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    next_delivery_at: Mapped[datetime | None]
    traceparent: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())


class WebhookEndpoint(Base):
    """A URL of a tenant that receives events. `webhooks.endpoints` writes it.

    Attributes:
        id: UUIDv7; it is also the destination's id.
        tenant_id: the owner.
        url: where events go. A new one resets the breaker.
        description: the owner's own words, empty if none.
        events: types of events that it wants, at least one; `*` wants all but those sent only on request.
        includes_output: small outputs come with the event.
        secret: sealed secret that signs deliveries (see `webhooks.vault`).
        old_secret: the secret before the last rotation; it signs as well until `old_secret_expires_at`. Null:
            none.
        old_secret_expires_at: end of that overlap. Null with `old_secret`.
        disabled_reason: `gone` (the receiver answered 410), `failing` (every delivery failed for days) or
            `owner` (disabled or deleted by its owner). Null: enabled.
        disabled_at: when it was disabled. Null while enabled.
        deleted_at: when its owner deleted it. Hidden from then on; its rows are removed in parts. Null
            before.
        created_at: when it was created.
    """

    __tablename__ = "webhook_endpoints"
    __table_args__ = (
        CheckConstraint("cardinality(events) >= 1", name="events"),
        CheckConstraint("(old_secret IS NULL) = (old_secret_expires_at IS NULL)", name="old_secret_expires"),
        CheckConstraint("(disabled_reason IS NULL) = (disabled_at IS NULL)", name="disabled"),
        CheckConstraint(one_of("disabled_reason", DISABLED_REASONS), name="disabled_reason"),
        CheckConstraint("deleted_at IS NULL OR disabled_at IS NOT NULL", name="deleted_is_disabled"),
        Index("ix_webhook_endpoints_tenant", "tenant_id", "id"),
        partial_index("ix_webhook_endpoints_deleted", "deleted_at", where="deleted_at IS NOT NULL"),
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
    """A tenant's default secret: it signs unless the endpoint or the job, batch or summary has its own.

    `webhooks.secrets` makes it when it is first needed.

    Attributes:
        tenant_id: the tenant. Deleted with it.
        secret: sealed, as an endpoint's.
        old_secret: the secret before the last rotation, sealed; it signs as well until
            `old_secret_expires_at`. Null: none.
        old_secret_expires_at: end of that overlap. Null with `old_secret`.
        created_at: when the tenant got its first own default.
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
