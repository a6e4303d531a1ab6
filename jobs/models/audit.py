"""The table of the audit log."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import CheckConstraint, Index, func, text
from sqlalchemy.orm import Mapped, mapped_column

from jobs.database.base import Base, JsonObject


class AuditEntry(Base):
    """A change that a caller or an operator made. `audit.note` writes it in the transaction of the change.

    Inserted only: a trigger refuses updates, and deletions but those at the end of the retention.

    Attributes:
        id: UUIDv7.
        tenant_id: whose log has it; null: only operators read it. No foreign key: it outlives the tenant.
        at: when, by the database's clock.
        action: an `audit.Action`; a later release may know more.
        object_id: what was changed, as callers know it; null: nothing in particular.
        actor_kind: an `audit.ActorKind`, what `actor_id` is.
        actor_id: an API key's public part, what names a person, or a user of the operating system; empty if
            unknown.
        actor_name: the operator's name for the key, or the person's.
        actor_tenant_id: the key's or the person's tenant.
        via: an `audit.Via`.
        request_id: of the HTTP request, as its answer has it.
        address: from which it came, as far as the API sees.
        details: facts about the change; never a secret or a prompt.
    """

    __tablename__ = "audit_log"
    __table_args__ = (
        CheckConstraint("action ~ '^[a-z_]+\\.[a-z_]+$'", name="action"),
        CheckConstraint("pg_column_size(details) <= 8192", name="details_are_small"),
        Index("ix_audit_log_tenant_id", "tenant_id", "id"),
        Index("ix_audit_log_action", "tenant_id", "action", "id"),
        Index("ix_audit_log_object_id", "object_id", "id"),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    tenant_id: Mapped[UUID | None]
    at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    action: Mapped[str]
    object_id: Mapped[str | None]
    actor_kind: Mapped[str]
    actor_id: Mapped[str]
    actor_name: Mapped[str]
    actor_tenant_id: Mapped[UUID | None]
    via: Mapped[str]
    request_id: Mapped[str | None]
    address: Mapped[str | None]
    details: Mapped[JsonObject] = mapped_column(server_default=text("'{}'"))
