"""The tables of jobs. Constraints here are the last wall: no code path can store a senseless state."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import (
    CheckConstraint,
    ForeignKey,
    Index,
    SmallInteger,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from jobs.database.base import Base, JsonObject, one_of
from jobs.ids import uuid7
from jobs.models.turn import COUNTING, indexes
from jobs.states import TERMINAL, FinishReason, JobState, Lane, StopReason

# Queued jobs by size: below 2k tokens of prompt, 4k, 8k, ... 64k, up to the 96,000 that engines take unless
# told otherwise, and above; and by need, prompt and max_tokens together: up to 8k, 16k, ... 256k, and above.
# The bounds are those of common engines: each passes over what it can never hold without reading it.
SIZE_BOUNDS = (2048, 4096, 8192, 16384, 32768, 65536, 96001)
NEED_BOUNDS = (8193, 16385, 32769, 65537, 131073, 262145)
NUM_SIZE_CLASSES = len(SIZE_BOUNDS) + 1
NEED_CLASSES = 16  # more than there are: a class is its size times this and its need
_SIZE = ",".join(map(str, SIZE_BOUNDS))
_NEED = ",".join(map(str, NEED_BOUNDS))
FIT_CLASS = (
    f"width_bucket(prompt_tokens, '{{{_SIZE}}}'::integer[]) * {NEED_CLASSES}"
    f" + width_bucket(prompt_tokens + max_tokens, '{{{_NEED}}}'::integer[])"
)

_TERMINAL_SQL = one_of("state", sorted(TERMINAL))


class PromptText(Base):
    """One distinct prompt of a tenant: its messages as canonical JSON, and its token ids once counted.

    Attributes:
        sha256: of the canonical JSON in UTF-8.
        body: the canonical JSON, zstd-compressed by the writer.
        token_ids: int32 little-endian, zstd-compressed; None until counted.
        num_tokens: how many ids that is.
        fingerprint: of the tokenizer and template that counted; another one counts again.
    """

    __tablename__ = "texts"
    __table_args__ = (UniqueConstraint("tenant_id", "sha256"),)

    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid7)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"))
    sha256: Mapped[bytes]
    body: Mapped[bytes]
    token_ids: Mapped[bytes | None]
    num_tokens: Mapped[int | None]
    fingerprint: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class Job(Base):
    """One request for generated text. Narrow on purpose: claims read these rows and no prompt.

    Attributes:
        text_id: its prompt; None: not written yet, as it waits for other jobs.
        lane: who waits for it: `interactive` goes ahead of `batch`.
        rank: -1 low, 0 normal, 1 high; orders within a tenant.
        prompt_tokens: exact, of the rendered prompt; None until counted.
        reserved_tokens: what it takes of its tenant's quota while unfinished: prompt and max_tokens, with a
            bound in place of the prompt until it is counted.
        completion_tokens: streamed so far, and final at the end; written by the worker.
        sampling: temperature (absent: 0, greedy), top_p, top_k, seed, stop as given.
        webhook_secret: signs what goes to `webhook_url`, sealed; None: the tenant's default does.
        webhook_includes_output: a small output is sent along.
        attempt: attempts spent so far, from 0.
        num_rescues: workers that went silent with this job in flight.
        stop_reason: why it should end early; asked by callers, read by its worker.
        lease_id: the fence: fresh at every claim, null unless a worker runs the job or counts its prompt.
        num_yields: times it left the engine to let others go on; after one it books all it may need.
        num_preemptions: times it made room for the interactive lane.
        run_after: not before this, after a failed attempt.
        num_preparations: times that counting its prompt was begun.
        batch_id: of the batch whose line it is; without a foreign key, which would lock the batch.
        batch_line: counted from 1.
        summary_id: of the summary in whose tree it stands; without a foreign key, as `batch_id`.
        is_reported: its batch has counted it and holds its line; else it must not go.
    """

    __tablename__ = "jobs"

    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid7)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"))
    text_id: Mapped[UUID | None] = mapped_column(ForeignKey("texts.id"))
    state: Mapped[str]
    lane: Mapped[str] = mapped_column(server_default=Lane.BATCH.value)
    rank: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    task: Mapped[str]
    model: Mapped[str]
    max_tokens: Mapped[int]
    prompt_tokens: Mapped[int | None]
    reserved_tokens: Mapped[int] = mapped_column(server_default="0")
    completion_tokens: Mapped[int] = mapped_column(server_default="0")
    sampling: Mapped[JsonObject] = mapped_column(server_default=text("'{}'"))
    custom_id: Mapped[str | None]
    # `metadata` is SQLAlchemy's own attribute name; the column has the public name.
    labels: Mapped[JsonObject] = mapped_column("metadata", server_default=text("'{}'"))
    webhook_url: Mapped[str | None]
    webhook_secret: Mapped[bytes | None]
    webhook_includes_output: Mapped[bool] = mapped_column(server_default=text("false"))
    attempt: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    num_rescues: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    num_yields: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    num_preemptions: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    num_preparations: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    stop_reason: Mapped[str | None]
    lease_id: Mapped[UUID | None]
    lease_expires_at: Mapped[datetime | None]
    engine_name: Mapped[str | None]
    run_after: Mapped[datetime | None]
    finish_reason: Mapped[str | None]
    error: Mapped[JsonObject | None] = mapped_column(JSONB(none_as_null=True))
    created_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    first_token_at: Mapped[datetime | None]
    finalized_at: Mapped[datetime | None]
    expires_at: Mapped[datetime | None]
    batch_id: Mapped[UUID | None]
    batch_line: Mapped[int | None]
    is_reported: Mapped[bool] = mapped_column(server_default=text("false"))
    summary_id: Mapped[UUID | None]

    __table_args__ = (
        CheckConstraint(one_of("state", sorted(JobState)), name="state"),
        CheckConstraint(
            "text_id IS NOT NULL OR (summary_id IS NOT NULL AND state NOT IN"
            " ('queued', 'running', 'completed'))",
            name="text_unless_waiting",
        ),
        CheckConstraint(f"({_TERMINAL_SQL}) = (finalized_at IS NOT NULL)", name="terminal_iff_finalized"),
        CheckConstraint(
            "(lease_id IS NULL) = (lease_expires_at IS NULL)"
            " AND (state <> 'running' OR lease_id IS NOT NULL)"
            " AND (lease_id IS NULL OR state IN ('preparing', 'running'))",
            name="lease_iff_held",
        ),
        CheckConstraint(
            "state NOT IN ('queued', 'running', 'completed') OR prompt_tokens IS NOT NULL", name="counted"
        ),
        CheckConstraint("(state = 'failed') = (error IS NOT NULL)", name="error_iff_failed"),
        CheckConstraint("(state = 'completed') = (finish_reason IS NOT NULL)", name="finish_iff_completed"),
        CheckConstraint(one_of("finish_reason", sorted(FinishReason)), name="finish_reason"),
        CheckConstraint(one_of("stop_reason", sorted(StopReason)), name="stop_reason"),
        CheckConstraint("max_tokens >= 1 AND prompt_tokens >= 0", name="tokens"),
        CheckConstraint("completion_tokens BETWEEN 0 AND max_tokens", name="output_within_limit"),
        CheckConstraint("attempt >= 0 AND num_rescues >= 0 AND rank BETWEEN -1 AND 1", name="counters"),
        CheckConstraint(one_of("lane", sorted(Lane)), name="lane"),
        # Claims: of each tenant and class the first, and those that expire next. The partial predicates must
        # stay literals in queries.
        Index(
            "ix_jobs_queued_by_class",
            "model",
            "lane",
            "tenant_id",
            text(f"({FIT_CLASS})"),
            text("rank DESC"),
            "id",
            postgresql_where=text("state = 'queued'"),
        ),
        Index(
            "ix_jobs_expiring_by_class",
            "model",
            "lane",
            "tenant_id",
            text(f"({FIT_CLASS})"),
            "expires_at",
            postgresql_where=text("state = 'queued' AND expires_at IS NOT NULL"),
        ),
        Index("ix_jobs_blocked", "id", postgresql_where=text("state = 'blocked'")),
        Index("ix_jobs_preparing", "id", postgresql_where=text("state = 'preparing'")),
        *indexes(COUNTING),
        Index("ix_jobs_running", "id", postgresql_where=text("state = 'running'")),
        Index(
            "ix_jobs_expiring",
            "expires_at",
            postgresql_where=text(f"expires_at IS NOT NULL AND NOT ({_TERMINAL_SQL})"),
        ),
        Index("ix_jobs_finalized", "finalized_at", postgresql_where=text("finalized_at IS NOT NULL")),
        Index("ix_jobs_tenant", "tenant_id", "id"),
        # Lists by state and by task; written once, when a job ends.
        Index("ix_jobs_ended", "tenant_id", "state", "id", postgresql_where=text("finalized_at IS NOT NULL")),
        Index(
            "ix_jobs_ended_task",
            "tenant_id",
            "task",
            "state",
            "id",
            postgresql_where=text("finalized_at IS NOT NULL"),
        ),
        # Quotas, which sum a tenant's unfinished jobs from the index alone, and lists of them.
        Index(
            "ix_jobs_unended",
            "tenant_id",
            "state",
            "id",
            postgresql_include=["reserved_tokens"],
            postgresql_where=text("finalized_at IS NULL"),
        ),
        # Predictions: the newest outputs of a tenant's task.
        Index(
            "ix_jobs_recent_outputs",
            "tenant_id",
            "task",
            "finalized_at",
            postgresql_where=text("state = 'completed'"),
        ),
        Index(
            "ix_jobs_custom_id",
            "tenant_id",
            "custom_id",
            "id",
            postgresql_where=text("custom_id IS NOT NULL"),
        ),
        Index("ix_jobs_text_id", "text_id"),
        # What a batch still waits for, and what of it has ended since it looked.
        Index(
            "ix_jobs_batch",
            "batch_id",
            "finalized_at",
            postgresql_where=text("batch_id IS NOT NULL AND NOT is_reported"),
        ),
        Index("ix_jobs_summary", "summary_id", postgresql_where=text("summary_id IS NOT NULL")),
        {
            # Leases and progress are not indexed: their updates stay on the page (HOT) if it has room.
            "postgresql_with": {
                "fillfactor": 70,
                "autovacuum_vacuum_scale_factor": 0,
                "autovacuum_vacuum_threshold": 5000,
                "autovacuum_analyze_scale_factor": 0,
                "autovacuum_analyze_threshold": 5000,
            }
        },
    )


class Result(Base):
    """What a job produced: whole when completed, partial when it ended otherwise.

    Attributes:
        output: text after detokenization and stop-string trimming.
        output_ids: the generated ids, int32 little-endian, zstd-compressed.
        replaced: the text held characters that Postgres cannot store, replaced by U+FFFD.
    """

    __tablename__ = "results"

    job_id: Mapped[UUID] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    output: Mapped[str]
    output_ids: Mapped[bytes]
    replaced: Mapped[bool] = mapped_column(server_default=text("false"))


class Checkpoint(Base):
    """What an unfinished job has generated, so that it goes on from here whoever runs it next.

    Attributes:
        output: text so far, as a partial result shows it.
        output_ids: the generated ids, int32 little-endian, zstd-compressed.
        num_tokens: how many ids.
        fingerprint: of the tokenizer whose ids they are; another one starts anew.
        replaced: as in a result.
    """

    __tablename__ = "checkpoints"
    __table_args__ = (CheckConstraint("num_tokens >= 0", name="num_tokens"),)

    job_id: Mapped[UUID] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    output: Mapped[str]
    output_ids: Mapped[bytes]
    num_tokens: Mapped[int]
    fingerprint: Mapped[str]
    replaced: Mapped[bool] = mapped_column(server_default=text("false"))
