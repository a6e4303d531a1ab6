"""The table of jobs. Constraints here are the last wall: no code path can store a senseless state."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import CheckConstraint, ForeignKey, Index, SmallInteger, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from jobs.database.base import Base, JsonObject, one_of, partial_index
from jobs.ids import uuid7
from jobs.models.adapter import Address
from jobs.models.turn import COUNTING, indexes
from jobs.states import TERMINAL, FinishReason, JobState, Lane, StopReason

# Queued jobs by prompt size: below 2k tokens, 4k, 8k, ... 64k, up to the 96,000 that engines take by default,
# and above; and by need, prompt and max_tokens together: up to 8k, 16k, ... 256k, and above. The bounds are
# those of common engines, so that each skips what it can never hold without reading it.
SIZE_BOUNDS = (2048, 4096, 8192, 16384, 32768, 65536, 96001)
NEED_BOUNDS = (8193, 16385, 32769, 65537, 131073, 262145)
NUM_SIZE_CLASSES = len(SIZE_BOUNDS) + 1
NEED_CLASSES = 16  # more than there are: a class is its size times this, plus its need
_SIZE = ",".join(map(str, SIZE_BOUNDS))
_NEED = ",".join(map(str, NEED_BOUNDS))
FIT_CLASS = (
    f"width_bucket(prompt_tokens, '{{{_SIZE}}}'::integer[]) * {NEED_CLASSES}"
    f" + width_bucket(prompt_tokens + max_tokens, '{{{_NEED}}}'::integer[])"
)

# Jobs of equal requests, see `sharing`.
LEADS = "request_digest IS NOT NULL AND state IN ('preparing', 'queued', 'running')"
IS_TWIN = "request_digest IS NOT NULL AND state = 'blocked'"
HAS_SHARED = "request_digest IS NOT NULL AND state = 'completed'"
HAS_FAILED = "request_digest IS NOT NULL AND state = 'failed'"
# Jobs of trees that began and have not ended, or ended without completing.
TREE_NOTED = (
    "summary_id IS NOT NULL AND state <> 'completed' AND (started_at IS NOT NULL OR finalized_at IS NOT NULL)"
)
# Ended jobs, or trees, whose traces nobody has written yet.
UNTRACED = "traceparent IS NOT NULL AND traced_at IS NULL AND finalized_at IS NOT NULL"
_TERMINAL_SQL = one_of("state", sorted(TERMINAL))


class RequestColumns:
    """What a job is asked to do: the columns that a second attempt takes over. `Job` describes them."""

    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"))
    text_id: Mapped[UUID | None] = mapped_column(ForeignKey("texts.id"))
    guide_id: Mapped[UUID | None] = mapped_column(ForeignKey("texts.id"))
    is_whole: Mapped[bool] = mapped_column(server_default=text("false"))
    lane: Mapped[str] = mapped_column(server_default=Lane.BATCH.value)
    rank: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    task: Mapped[str]
    model: Mapped[str]
    adapter: Mapped[str | None]
    max_tokens: Mapped[int]
    reserved_tokens: Mapped[int] = mapped_column(server_default="0")
    sampling: Mapped[JsonObject] = mapped_column(server_default=text("'{}'"))
    custom_id: Mapped[str | None]
    # `metadata` is SQLAlchemy's own attribute name; the column has the public name.
    labels: Mapped[JsonObject] = mapped_column("metadata", server_default=text("'{}'"))
    webhook_url: Mapped[str | None]
    webhook_secret: Mapped[bytes | None]
    webhook_includes_output: Mapped[bool] = mapped_column(server_default=text("false"))
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    batch_id: Mapped[UUID | None]
    batch_line: Mapped[int | None]
    choice: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    num_choices: Mapped[int | None] = mapped_column(SmallInteger)
    summary_id: Mapped[UUID | None]
    traceparent: Mapped[str | None]
    api_key_id: Mapped[UUID | None]


class Job(RequestColumns, Base):
    """One request for generated text. Narrow on purpose: claims read these rows and no prompt.

    `submission` creates it (for a summary `summaries.drafts` and `trees.progress`); `preparation`,
    `lifecycle` and `trees.progress` move it on; `deletion` removes it after its retention. `lease_id` fences
    what workers write. Times are the database's.

    Attributes:
        id: UUIDv7, so ids sort by age. Jobs of a summary get ids in the order in which they should run.
        tenant_id: the owner. Never changes.
        text_id: the prompt, shared by equal prompts of a tenant. Null while a job of a summary waits for
            other jobs, and until its prompt is written and counted.
        guide_id: the form that its answer must have, see `prompts.guides`; stored as texts are. Null: any.
        is_whole: one request to an engine generates its whole answer, since an engine that went on in the
            middle would not know what it is guided by or penalizes. It reserves all that it may need, is not
            preempted, and starts over after an interruption.
        state: a `JobState`; `TRANSITIONS` lists the moves. Final states are never left.
        lane: a `Lane`: `interactive` goes ahead of `batch`. Set at submission.
        rank: -1 low, 0 normal, 1 high. Orders jobs within a tenant. Set at submission.
        task: what the caller asks of the model, such as `summarize`; `chat` for requests whose caller waits,
            `response` for responses in the background, `embed` for inputs of embeddings, `generate` for other
            lines of a batch, `summary_*` in summaries. Outputs are predicted per tenant and task.
        model: the model's name, as engines register it.
        adapter: the model's adapter that answers. Null: the model as it is.
        max_tokens: most tokens to generate, at least 1.
        prompt_tokens: exact length of the rendered prompt. Null until counted, by `submission` if the prompt
            is short and by `preparation` otherwise. A worker corrects it if its tokenizer differs. Of a
            prompt that was too long to count to its end it is a lower bound.
        cached_tokens: prompt tokens that the engine had in its cache when it first got the job, 0 to
            `prompt_tokens`; of a job that took another one's answer, all of them. Set when that run ends.
            Null: the engine did not tell.
        family: keyed hash of the beginning of its prompt (`prompts.prefixes.family`): jobs with the same one
            share nearly half of it, or more. Null until counted, of short prompts, and if it was counted
            before migration 0031.
        reserved_tokens: what the job takes of its tenant's quota until it ends: prompt and `max_tokens`, with
            an upper bound of the prompt until it is counted.
        completion_tokens: tokens generated so far, 0 to `max_tokens`. The worker reports it while the job
            runs; when the job leaves its engine or ends, it falls back to what the checkpoint holds.
        sampling: `temperature` (absent: 0, greedy), `top_p`, `top_k`, `seed` and `stop` as the caller gave
            them, of embeddings `dimensions` and `encoding_format`; `{}` if none.
        custom_id: the caller's own name for the job, not unique. Null if it gave none.
        labels: the column `metadata`: the caller's own keys and values, `{}` if none.
        webhook_url: where this job's final event goes, besides the tenant's endpoints. Null: nowhere else.
        webhook_secret: sealed secret that signs deliveries to `webhook_url`. Null: the tenant's default
            signs.
        webhook_includes_output: deliveries to `webhook_url` carry the output if it is small.
        attempt: failed attempts so far, from 0. Only `retry` adds one; a lost worker, a yield or a preemption
            spends none.
        num_rescues: times that its worker or engine was lost while the job ran. `rescue` adds one. After
            `max_rescues` of them it runs alone, and fails if it is lost once more.
        num_yields: times that it left the engine so that other jobs could go on. From the first one on, the
            job reserves all that it may need.
        num_preemptions: times that it left the engine for the interactive lane. Bounded by the packing
            policy.
        num_preparations: attempts at counting its prompt. `turns` adds one as it takes the job, and takes it
            back if the attempt was not the job's fault.
        stop_reason: why its worker should end it early, a `StopReason`. Callers, `expire` and preemption set
            it on a running job; a stronger reason replaces a weaker one. Cleared when the job goes back to
            the queue.
        lease_id: the fence, new at every claim. Null unless a worker runs the job or counts its prompt.
        lease_expires_at: until when the lease holds; its worker renews it. Then the job may be rescued, or
            counted by another worker. Null with `lease_id`.
        engine_name: the engine that runs it or, once the job ends, ran it last. Null in the queue.
        run_after: not claimed, or not counted, before this. Set after a failed attempt, cleared by the next
            claim.
        finish_reason: a `FinishReason`. Null unless completed.
        error: `{code, message, details?}`. Null unless failed.
        created_at: when it was submitted. What one bulk request or batch stores within a minute has one time.
            A second attempt in a summary keeps the time of the first.
        started_at: when an engine first claimed it; later claims keep it. Null before.
        first_token_at: when its first token came. Null before, and again when it leaves its engine without a
            checkpoint.
        finalized_at: when it reached its final state. Null until then. Retention counts from here.
        expires_at: when its completion window ends: it expires unless it has ended. Null: never.
        batch_id: the batch that it is a line of. Null: none. No foreign key, which would lock the batch's
            row.
        batch_line: its line in the batch's file, from 1. Null with `batch_id`. All choices of a line have it.
        choice: its place among the choices of one request, from 0, or among the inputs of a request for
            embeddings. Choices after the first share its prompt: they wait while it is read, and usage does
            not count it again.
        num_choices: choices or inputs of that request, at least 2. Null: it has one.
        is_reported: its batch has counted it and written its line; before that it must not be deleted. False
            for jobs outside of batches.
        summary_id: the summary whose tree it belongs to. Null: none. No foreign key, as for `batch_id`.
        request_digest: equal in jobs that may share one run, see `sharing`; at most one of them is preparing,
            queued or running, the leader. A `blocked` one is its twin. Null: the job runs by itself.
        traceparent: the span above its own, as W3C Trace Context writes it (`traces.context`). Null: it has
            no trace. Set at submission.
        api_key_id: the key that submitted it, or the batch or tree that it is of. Null: a person did, or a
            release before migration 0071. No foreign key, which would lock the key's row.
        traced_at: when a service worker took it to write its trace, once it had ended. Null: it did not yet,
            or could not reach the collector.
        has_twins: others wait, or waited, for its end. Set by the submission of a twin, which holds its row.
    """

    __tablename__ = "jobs"

    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid7)
    state: Mapped[str]
    prompt_tokens: Mapped[int | None]
    cached_tokens: Mapped[int | None]
    family: Mapped[bytes | None]
    completion_tokens: Mapped[int] = mapped_column(server_default="0")
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
    started_at: Mapped[datetime | None]
    first_token_at: Mapped[datetime | None]
    finalized_at: Mapped[datetime | None]
    is_reported: Mapped[bool] = mapped_column(server_default=text("false"))
    request_digest: Mapped[bytes | None]
    has_twins: Mapped[bool] = mapped_column(server_default=text("false"))
    traced_at: Mapped[datetime | None]

    @property
    def address(self) -> str:
        """The model as its caller named it, with the adapter."""
        return str(Address(self.model, self.adapter))

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
        CheckConstraint("cached_tokens BETWEEN 0 AND prompt_tokens", name="cached_tokens"),
        CheckConstraint("completion_tokens BETWEEN 0 AND max_tokens", name="output_within_limit"),
        CheckConstraint("attempt >= 0 AND num_rescues >= 0 AND rank BETWEEN -1 AND 1", name="counters"),
        CheckConstraint(one_of("lane", sorted(Lane)), name="lane"),
        # Claims read the first jobs of each tenant and class, and those that expire next. Queries must write
        # the partial predicates as literals.
        partial_index(
            "ix_jobs_queued_by_class",
            "model",
            "lane",
            "tenant_id",
            text(f"({FIT_CLASS})"),
            text("rank DESC"),
            "id",
            where="state = 'queued'",
        ),
        partial_index(
            "ix_jobs_expiring_by_class",
            "model",
            "lane",
            "tenant_id",
            text(f"({FIT_CLASS})"),
            "expires_at",
            where="state = 'queued' AND expires_at IS NOT NULL",
        ),
        # Claims read the jobs that begin with what an engine has.
        partial_index(
            "ix_jobs_queued_by_family",
            "model",
            "lane",
            "tenant_id",
            "family",
            text("rank DESC"),
            "id",
            where="state = 'queued' AND family IS NOT NULL",
        ),
        partial_index("ix_jobs_blocked", "id", where="state = 'blocked'"),
        partial_index("ix_jobs_preparing", "id", where="state = 'preparing'"),
        *indexes(COUNTING),
        partial_index("ix_jobs_running", "id", where="state = 'running'"),
        partial_index("ix_jobs_untraced", "id", where=UNTRACED),
        partial_index(
            "ix_jobs_expiring", "expires_at", where=f"expires_at IS NOT NULL AND NOT ({_TERMINAL_SQL})"
        ),
        partial_index("ix_jobs_finalized", "finalized_at", where="finalized_at IS NOT NULL"),
        Index("ix_jobs_tenant", "tenant_id", "id"),
        # Lists by state and by task. Written once, when a job ends.
        partial_index("ix_jobs_ended", "tenant_id", "state", "id", where="finalized_at IS NOT NULL"),
        partial_index(
            "ix_jobs_ended_task", "tenant_id", "task", "state", "id", where="finalized_at IS NOT NULL"
        ),
        # Quotas, which sum a tenant's unfinished jobs from the index alone, and lists of unfinished jobs.
        partial_index(
            "ix_jobs_unended",
            "tenant_id",
            "state",
            "id",
            include=["reserved_tokens"],
            where="finalized_at IS NULL",
        ),
        # Quotas of keys, likewise.
        partial_index(
            "ix_jobs_unended_of_key",
            "tenant_id",
            "api_key_id",
            include=["reserved_tokens"],
            where="finalized_at IS NULL AND api_key_id IS NOT NULL",
        ),
        # Predictions: the newest outputs of a tenant's task.
        partial_index(
            "ix_jobs_recent_outputs", "tenant_id", "task", "finalized_at", where="state = 'completed'"
        ),
        partial_index("ix_jobs_custom_id", "tenant_id", "custom_id", "id", where="custom_id IS NOT NULL"),
        Index("ix_jobs_text_id", "text_id"),
        partial_index("ix_jobs_guide_id", "guide_id", where="guide_id IS NOT NULL"),
        # The jobs that a batch still waits for, and those that ended and are not reported yet.
        partial_index(
            "ix_jobs_batch", "batch_id", "finalized_at", where="batch_id IS NOT NULL AND NOT is_reported"
        ),
        # Equal requests: the one that runs, those that wait for it, and those that have ended by a run.
        partial_index("uq_jobs_leader", "request_digest", unique=True, where=LEADS),
        partial_index("ix_jobs_twins", "request_digest", "id", where=IS_TWIN),
        partial_index("ix_jobs_shared", "request_digest", "finalized_at", where=HAS_SHARED),
        partial_index("ix_jobs_refused", "request_digest", "finalized_at", where=HAS_FAILED),
        partial_index("ix_jobs_summary", "summary_id", where="summary_id IS NOT NULL"),
        # What a look at a tree reads besides its counts: jobs at work, and those that did not complete. With
        # the tenant, or the planner would combine it with an index of all jobs of the tenant.
        partial_index("ix_jobs_tree_noted", "summary_id", "tenant_id", "id", where=TREE_NOTED),
        {
            # Leases and progress are not indexed: their updates stay on their page (HOT) if it has room. Each
            # job leaves about three dead rows, and the indexes have an entry for each, so few may gather,
            # however many rows the table has: when Postgres crashes it forgets how many there are.
            "postgresql_with": {
                "fillfactor": 70,
                "autovacuum_vacuum_scale_factor": 0,
                "autovacuum_vacuum_threshold": 500,
                "autovacuum_analyze_scale_factor": 0,
                "autovacuum_analyze_threshold": 500,
            }
        },
    )
