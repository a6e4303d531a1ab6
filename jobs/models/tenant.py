"""The tables of tenants: their keys and limits, what they used, and the idempotency keys they sent."""

from datetime import date, datetime
from typing import Final
from uuid import UUID

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, SmallInteger, Text, func, text
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.orm import Mapped, mapped_column

from jobs.database.base import Base, JsonObject
from jobs.ids import uuid7
from jobs.models.halt import Haltable, halt_checks

# The tenant that every database has from the start.
DEFAULT_TENANT = UUID("00000000-0000-7000-8000-000000000001")
# Has the usage of deleted tenants, if a setting keeps that. Made with the first of them.
FORMER_TENANTS = UUID("00000000-0000-7000-8000-000000000002")
# An array of the tenants whose queues are halted, in SQL: hardly ever any.
HALTED_TENANTS: Final = "ARRAY(SELECT id FROM tenants WHERE halt IS NOT NULL)"


class ApiKey(Base):
    """A secret that acts for a tenant. Only its hash is stored.

    Operators create, rotate and revoke keys (`tenants.keys`); rows stay.

    Attributes:
        id: UUIDv7.
        tenant_id: the tenant that it acts for.
        handle: the public part of the key, 16 hex digits: it finds and names the key. Unique.
        secret_sha256: hash of the whole key, 32 bytes. The key has 256 random bits, so no slow hash is
            needed.
        name: the operator's name for it, not unique.
        scopes: `keys.Scope` values, at least one.
        created_at: when it was created.
        expires_at: not valid from then on; rotation brings it forward. Null: never expires.
        revoked_at: not valid since then. Null: not revoked.
        last_used_at: the newest minute in which it was used, as far as the API has written it. Null: never
            used.
        max_requests: requests per minute with this key, at least 1; operators write it. Null: what its tenant
            may send.
        max_jobs: unfinished jobs that it submitted, at least 0; operators write it. Null: what its tenant may
            have.
        max_enqueued_tokens: prompt and `max_tokens` of these jobs together, at least 0. Null as above.
    """

    __tablename__ = "api_keys"
    __table_args__ = (
        CheckConstraint("octet_length(secret_sha256) = 32", name="sha256"),
        CheckConstraint(
            "cardinality(scopes) >= 1 AND scopes <@ ARRAY['admin', 'engine', 'operator', 'read', 'submit']",
            name="scopes",
        ),
        CheckConstraint("max_requests >= 1", name="max_requests"),
        CheckConstraint("max_enqueued_tokens >= 0 AND max_jobs >= 0", name="quotas"),
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
    max_requests: Mapped[int | None]
    max_jobs: Mapped[int | None]
    max_enqueued_tokens: Mapped[int | None] = mapped_column(BigInteger)


class TenantLimit(Base):
    """Limits of one tenant that differ from the settings. Operators write them; null: the setting holds.

    Attributes:
        tenant_id: the tenant. Deleted with it.
        max_enqueued_tokens: tokens of prompt and `max_tokens` of its unfinished jobs together, at least 0.
        max_jobs: unfinished jobs, at least 0.
        max_requests: requests per minute, at least 1.
        max_stored_bytes: what it may keep in the database; 0: any amount.
        adapters: the only ones that it may name, each as `model:name`. Null: all of them.
    """

    __tablename__ = "tenant_limits"
    __table_args__ = (
        CheckConstraint("max_enqueued_tokens >= 0 AND max_jobs >= 0 AND max_requests >= 1", name="bounds"),
    )

    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"), primary_key=True)
    max_enqueued_tokens: Mapped[int | None] = mapped_column(BigInteger)
    max_jobs: Mapped[int | None]
    max_requests: Mapped[int | None]
    max_stored_bytes: Mapped[int | None] = mapped_column(BigInteger)
    adapters: Mapped[list[str] | None] = mapped_column(ARRAY(Text))


class QuotaAllowance(Base):
    """A part of a tenant's free quota that the processes of one shard use up without summing its jobs.

    `tenants.allowances` writes it.

    Attributes:
        tenant_id: the tenant. Deleted with it.
        shard: 0 to 15; processes choose one by chance.
        tokens: what new jobs may still take, at least 0.
        jobs: how many there may be, at least 0.
        max_enqueued_tokens: the limit that it was part of. Under another limit it is not used.
        max_jobs: the second limit that it was part of.
        stored_bytes: what requests may still store, at least 0; 0 where nothing limits that.
        max_stored_bytes: the third limit that it was part of.
    """

    __tablename__ = "quota_allowances"
    __table_args__ = (CheckConstraint("tokens >= 0 AND jobs >= 0", name="bounds"),)

    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"), primary_key=True)
    shard: Mapped[int] = mapped_column(SmallInteger, primary_key=True)
    tokens: Mapped[int] = mapped_column(BigInteger)
    jobs: Mapped[int] = mapped_column(BigInteger)
    max_enqueued_tokens: Mapped[int] = mapped_column(BigInteger)
    max_jobs: Mapped[int] = mapped_column(BigInteger)
    stored_bytes: Mapped[int] = mapped_column(BigInteger, server_default="0")
    max_stored_bytes: Mapped[int] = mapped_column(BigInteger, server_default="0")


class StoredNote(Base):
    """By how many bytes one statement changed what a tenant keeps. Triggers insert it.

    `stored_bytes.add_up` later moves it into `stored_totals`. No foreign key: a check for each write would be
    in vain, as every counted row has its tenant.

    Attributes:
        id: random.
        tenant_id: the owner.
        num_bytes: below 0 for what was deleted.
    """

    __tablename__ = "stored_notes"
    __table_args__ = (Index("ix_stored_notes_tenant_id", "tenant_id"),)

    id: Mapped[UUID] = mapped_column(primary_key=True, server_default=text("gen_random_uuid()"))
    tenant_id: Mapped[UUID]
    num_bytes: Mapped[int] = mapped_column(BigInteger)


class StoredTotal(Base):
    """What a tenant keeps in the database, but for the notes that are not yet added up.

    Attributes:
        tenant_id: the owner. Deleted with it.
        num_bytes: the sum, which may be below 0 while notes are outstanding.
    """

    __tablename__ = "stored_totals"

    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"), primary_key=True)
    num_bytes: Mapped[int] = mapped_column(BigInteger)


class UsageEntry(Base):
    """Jobs of one tenant, model and state that ended in one transaction.

    Inserted only, never updated: workers that end jobs of one tenant do not wait for each other.
    `usage.add_up` later moves it into `usage_days`.

    Attributes:
        id: UUIDv7.
        tenant_id: the owner.
        day: on which the jobs ended, in UTC.
        model: their model.
        state: their final `JobState`.
        num_jobs: number of jobs, at least 1.
        prompt_tokens: of those jobs that an engine began.
        cached_tokens: of those, what the engine had in its cache, where it told.
        completion_tokens: tokens that they generated.
    """

    __tablename__ = "usage_entries"

    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid7)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"))
    day: Mapped[date]
    model: Mapped[str]
    state: Mapped[str]
    num_jobs: Mapped[int]
    prompt_tokens: Mapped[int] = mapped_column(BigInteger)
    cached_tokens: Mapped[int] = mapped_column(BigInteger, server_default="0")
    completion_tokens: Mapped[int] = mapped_column(BigInteger)

    __table_args__ = (Index("ix_usage_entries_tenant_id", "tenant_id", "day"),)


class UsageDay(Base):
    """Jobs of a tenant that ended on one day in one state, and their tokens. Outlives the jobs.

    `usage.add_up` sums entries into it; nothing deletes it.

    Attributes:
        tenant_id: the owner.
        day: on which the jobs ended, in UTC.
        model: their model.
        state: their final `JobState`.
        num_jobs: number of jobs.
        prompt_tokens: of those jobs that an engine began.
        cached_tokens: of those, what the engine had in its cache, where it told.
        completion_tokens: tokens that they generated.
    """

    __tablename__ = "usage_days"
    __table_args__ = (Index("ix_usage_days_day", "day"),)

    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    day: Mapped[date] = mapped_column(primary_key=True)
    model: Mapped[str] = mapped_column(primary_key=True)
    state: Mapped[str] = mapped_column(primary_key=True)
    num_jobs: Mapped[int] = mapped_column(BigInteger)
    prompt_tokens: Mapped[int] = mapped_column(BigInteger)
    cached_tokens: Mapped[int] = mapped_column(BigInteger, server_default="0")
    completion_tokens: Mapped[int] = mapped_column(BigInteger)


class IdempotencyKey(Base):
    """A caller's promise that two requests with this key are one. `tenants.idempotency` writes it.

    Attributes:
        tenant_id: the caller's tenant.
        key: as the caller sent it; our own keys contain a line feed.
        request_sha256: hash of what the request means. Another hash under the same key is a conflict.
        subject_type: what the request made: `job`, `jobs` (a slice of a bulk request), `batch`, `file`,
            `document` or `summaries`.
        subject_id: the one thing that it made. Null: see `answer`. No foreign key: once the thing is deleted,
            the key is free again.
        answer: what it made, if that is not one thing with an id. Null with a `subject_id`.
        created_at: when the key last made something. The key is forgotten some hours later.
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


class Tenant(Haltable, Base):
    """An owner of jobs, files and documents, which no other tenant can see. Operators create tenants.

    While its queue is halted, none of its jobs starts; what it submits is accepted and waits.

    Attributes:
        id: UUIDv7; `DEFAULT_TENANT` exists in every database.
        name: unique, up to 63 characters.
        weight: its share of an engine relative to the weights of other tenants that wait, above 0.
        created_at: when it was created.
        halt: a `HaltKind` that an operator ordered: no job starts. Null: jobs start.
        halted_reason: in the operator's words; tenants whose jobs wait read it. Null: not halted.
        halted_by: the API key that ordered it, `lb_` and its public part. Null: the command line, or not
            halted.
        halted_by_name: the key's name at that time. Null: not halted.
        halted_since: since when no job starts. Null: not halted.
        zero_retention_seconds: its prompts and results go once they were delivered, at the latest after so
            long (`erasure.zero_retention`). Null: they stay until they are deleted or their retention ends.
        deleted_at: when an operator ordered its deletion; service workers remove its rows since, and this one
            at last. Null: it stays.
        num_removed: rows that were removed so far. 0 unless it is being deleted.
        searched_to: id of the last webhook event, of any tenant, that the deletion looked at: few of them are
            found by their tenant. Null: it looked at none.
    """

    __tablename__ = "tenants"
    __table_args__ = (
        CheckConstraint("weight > 0", name="weight"),
        CheckConstraint("zero_retention_seconds > 0", name="zero_retention_seconds"),
        *halt_checks(),
        Index("ix_tenants_halted", "id", postgresql_where=text("halt IS NOT NULL")),
        Index("ix_tenants_deleted", "deleted_at", postgresql_where=text("deleted_at IS NOT NULL")),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid7)
    name: Mapped[str] = mapped_column(unique=True)
    weight: Mapped[float] = mapped_column(server_default="1")
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    zero_retention_seconds: Mapped[int | None]
    deleted_at: Mapped[datetime | None]
    num_removed: Mapped[int] = mapped_column(BigInteger, server_default="0")
    searched_to: Mapped[UUID | None]
