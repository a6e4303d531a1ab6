"""The tables of tenants: their keys and limits, what they used, and which requests they sent before."""

from datetime import date, datetime
from uuid import UUID

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, Text, func, text
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.orm import Mapped, mapped_column

from jobs.database.base import Base, JsonObject
from jobs.ids import uuid7

# The tenant that every database has from the start.
DEFAULT_TENANT = UUID("00000000-0000-7000-8000-000000000001")


class ApiKey(Base):
    """A secret that speaks for a tenant; only its hash is stored.

    Attributes:
        handle: the public part of the key, by which it is found and named.
        secret_sha256: of the whole key. It has 256 random bits, so no slow hash is needed.
        scopes: of `keys.Scope`.
        expires_at: not valid from then on; None: never.
        revoked_at: not valid since then; None: it was not revoked.
        last_used_at: a minute in which it was used, the newest one known; written by the API.
    """

    __tablename__ = "api_keys"
    __table_args__ = (
        CheckConstraint("octet_length(secret_sha256) = 32", name="sha256"),
        CheckConstraint(
            "cardinality(scopes) >= 1 AND scopes <@ ARRAY['admin', 'read', 'submit']", name="scopes"
        ),
        Index("ix_api_keys_tenant_id", "tenant_id"),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid7)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"))
    handle: Mapped[str] = mapped_column(unique=True)
    secret_sha256: Mapped[bytes]
    name: Mapped[str]
    scopes: Mapped[list[str]] = mapped_column(ARRAY(Text))
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]


class TenantLimit(Base):
    """What a tenant may ask for where it differs from the settings; None: as the settings say.

    Attributes:
        max_enqueued_tokens: prompt and output at most of all its unfinished jobs together.
        max_jobs: unfinished ones.
        max_requests: in a minute.
    """

    __tablename__ = "tenant_limits"
    __table_args__ = (
        CheckConstraint("max_enqueued_tokens >= 0 AND max_jobs >= 0 AND max_requests >= 1", name="bounds"),
    )

    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"), primary_key=True)
    max_enqueued_tokens: Mapped[int | None] = mapped_column(BigInteger)
    max_jobs: Mapped[int | None]
    max_requests: Mapped[int | None]


class UsageEntry(Base):
    """Jobs of one tenant, model and state that ended in one transaction; rolled up into `usage_days` later.

    Written only, never updated: workers that end jobs of one tenant do not wait for each other.
    """

    __tablename__ = "usage_entries"

    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid7)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"))
    day: Mapped[date]
    model: Mapped[str]
    state: Mapped[str]
    num_jobs: Mapped[int]
    prompt_tokens: Mapped[int] = mapped_column(BigInteger)
    completion_tokens: Mapped[int] = mapped_column(BigInteger)

    __table_args__ = (Index("ix_usage_entries_tenant_id", "tenant_id", "day"),)


class UsageDay(Base):
    """Jobs of a tenant that ended on a day (UTC) in one state, and their tokens; outlives the jobs."""

    __tablename__ = "usage_days"

    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    day: Mapped[date] = mapped_column(primary_key=True)
    model: Mapped[str] = mapped_column(primary_key=True)
    state: Mapped[str] = mapped_column(primary_key=True)
    num_jobs: Mapped[int] = mapped_column(BigInteger)
    prompt_tokens: Mapped[int] = mapped_column(BigInteger)
    completion_tokens: Mapped[int] = mapped_column(BigInteger)


class IdempotencyKey(Base):
    """A caller's promise that two requests with this key are one.

    Attributes:
        key: as the caller sent it; with a line feed in it when it is one of our own.
        subject_type: what the request made: `job`, `jobs` (a part of a bulk request), ….
        subject_id: which one; None: the answer says it. No foreign key: it may be gone, then the key is free.
        answer: what was made when that is not one thing with an id.
    """

    __tablename__ = "idempotency_keys"
    __table_args__ = (Index("ix_idempotency_keys_created_at", "created_at"),)

    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    request_sha256: Mapped[bytes]
    subject_type: Mapped[str] = mapped_column(server_default=text("'job'"))
    subject_id: Mapped[UUID | None]
    answer: Mapped[JsonObject | None] = mapped_column(JSONB(none_as_null=True))
    created_at: Mapped[datetime]


class Tenant(Base):
    """Somebody whose jobs nobody else can see.

    Attributes:
        weight: its share of an engine relative to the weights of others who wait too.
    """

    __tablename__ = "tenants"
    __table_args__ = (CheckConstraint("weight > 0", name="weight"),)

    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid7)
    name: Mapped[str] = mapped_column(unique=True)
    weight: Mapped[float] = mapped_column(server_default="1")
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
