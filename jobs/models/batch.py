"""The table of batches."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, SmallInteger, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from jobs.database.base import Base, JsonObject, one_of, partial_index
from jobs.ids import uuid7
from jobs.models.turn import VALIDATION, indexes
from jobs.states.batch import ACTIVE, TERMINAL, BatchState, Endpoint

# Ended batches whose traces nobody has written yet.
UNTRACED_BATCH = f"traceparent IS NOT NULL AND traced_at IS NULL AND {one_of('state', sorted(TERMINAL))}"
_ACTIVE_SQL = one_of("state", sorted(ACTIVE))


class Batch(Base):
    """A file of requests that run as jobs. No foreign keys to its files: they have lives of their own.

    `batches.lifecycle` writes the state, and a service worker moves the batch on: `validation` checks the
    file, `expansion` turns its lines into jobs, `results` writes and counts the lines that ended.

    Attributes:
        id: UUIDv7.
        tenant_id: the owner.
        state: a `BatchState`; `TRANSITIONS` lists the moves.
        endpoint: an `Endpoint`; every line asks for it.
        completion_window: `1h`, `24h` or `7d`, as the caller chose; see `expires_at`.
        input_file_id: the file with the requests. A retry writes it while it is validated.
        output_file_id: the file of completed lines. Null until the first line completes.
        error_file_id: the file of lines that did not complete. Null until there is one.
        output_expires_seconds: life of the result files, counted from the end of the batch. Null: the
            setting's.
        retry_of: the batch whose failed lines these are. Null: not a retry.
        model: the model of the first line. Null until the file is accepted.
        labels: the column `metadata`: the caller's own keys and values. Null if it gave none.
        errors: why the file was refused, `{code, line, message, param}` each. Null unless failed.
        num_lines: requests in the file. 0 until it is accepted.
        num_completed: lines that completed and are in the output file.
        num_failed: lines that failed: refused, failed as jobs, or cancelled one by one.
        num_stopped: lines that the batch's cancellation or the end of its window ended. Callers see them as
            neither completed nor failed.
        error_counts: lines of the error file by the code of their error. `results.append_errors` counts them;
            those that workers of the release before wrote are missing.
        input_tokens: prompt tokens of the completed lines.
        cached_tokens: how many of those engines had in their caches, where they told.
        output_tokens: generated tokens of the completed lines.
        reasoning_tokens: how many of those were thinking.
        next_offset: byte of the file at which the next line to expand begins.
        next_line: number of that line, from 1.
        is_expanded: every line is a job or has ended.
        num_validations: attempts at checking the file. `turns` adds one as it takes the batch.
        num_failures: failures in a row to expand the next lines. 0 after a success; at `MAX_FAILURES` the
            lines that are left fail.
        lease_id: the fence of the worker that checks the file. Null unless one does.
        lease_expires_at: until when that lease holds; its worker renews it. Null with `lease_id`.
        run_after: nothing is done for the batch before this. Set after a failure, null after each change of
            state.
        webhook_url: where the final event goes, besides the tenant's endpoints. Null: nowhere else.
        webhook_secret: sealed secret that signs deliveries to `webhook_url`. Null: the tenant's default
            signs.
        request_sha256: hash of what was asked. It recognizes a client that repeats its request.
        created_at: when the batch was created.
        expires_at: when its completion window ends.
        in_progress_at: when its file was accepted. Null before, and if it was not.
        finalizing_at: when its last line ended. Null before, and if lines expired or the batch was cancelled.
        completed_at: when it completed. Null otherwise.
        failed_at: when its file was refused. Null otherwise.
        expired_at: when it ended with lines that had expired. Null otherwise.
        cancelling_at: when its owner cancelled it. Null otherwise.
        cancelled_at: when the last of its lines had ended after that. Null otherwise.
        traceparent: as of a job. Null: neither it nor any of its lines has a trace.
        traced_at: as of a job.
        api_key_id: the key that created it, and that its lines count towards. Null as of a job.
    """

    __tablename__ = "batches"
    __table_args__ = (
        CheckConstraint(one_of("state", sorted(BatchState)), name="state"),
        CheckConstraint(one_of("endpoint", sorted(Endpoint)), name="endpoint"),
        CheckConstraint(
            " AND ".join(
                f"(state = '{each}') = ({each}_at IS NOT NULL)"
                for each in ("failed", "completed", "expired", "cancelled")
            ),
            name="ended_at",
        ),
        CheckConstraint("(state = 'failed') = (errors IS NOT NULL)", name="errors_iff_failed"),
        CheckConstraint(
            "num_completed >= 0 AND num_failed >= 0 AND num_stopped >= 0"
            " AND num_completed + num_failed + num_stopped <= num_lines",
            name="counts",
        ),
        CheckConstraint(
            "state NOT IN ('finalizing', 'completed', 'expired', 'cancelled')"
            " OR num_completed + num_failed + num_stopped = num_lines",
            name="ends_whole",
        ),
        CheckConstraint("(lease_id IS NULL) = (lease_expires_at IS NULL)", name="lease_whole"),
        CheckConstraint("lease_id IS NULL OR state = 'validating'", name="lease_while_validating"),
        Index("ix_batches_tenant", "tenant_id", "id"),
        *indexes(VALIDATION),
        partial_index("ix_batches_active", "id", where=_ACTIVE_SQL),
        partial_index("ix_batches_untraced", "id", where=UNTRACED_BATCH),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid7)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"))
    state: Mapped[str]
    endpoint: Mapped[str]
    completion_window: Mapped[str]
    input_file_id: Mapped[UUID]
    output_file_id: Mapped[UUID | None]
    error_file_id: Mapped[UUID | None]
    output_expires_seconds: Mapped[int | None]
    retry_of: Mapped[UUID | None]
    model: Mapped[str | None]
    # `metadata` is SQLAlchemy's own attribute name; the column has the public name.
    labels: Mapped[JsonObject | None] = mapped_column("metadata", JSONB(none_as_null=True))
    errors: Mapped[list[JsonObject] | None] = mapped_column(JSONB(none_as_null=True))
    num_lines: Mapped[int] = mapped_column(server_default="0")
    num_completed: Mapped[int] = mapped_column(server_default="0")
    num_failed: Mapped[int] = mapped_column(server_default="0")
    num_stopped: Mapped[int] = mapped_column(server_default="0")
    error_counts: Mapped[dict[str, int]] = mapped_column(JSONB, server_default="{}")
    input_tokens: Mapped[int] = mapped_column(BigInteger, server_default="0")
    output_tokens: Mapped[int] = mapped_column(BigInteger, server_default="0")
    cached_tokens: Mapped[int] = mapped_column(BigInteger, server_default="0")
    reasoning_tokens: Mapped[int] = mapped_column(BigInteger, server_default="0")
    next_offset: Mapped[int] = mapped_column(BigInteger, server_default="0")
    next_line: Mapped[int] = mapped_column(server_default="1")
    is_expanded: Mapped[bool] = mapped_column(server_default=text("false"))
    num_validations: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    num_failures: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    lease_id: Mapped[UUID | None]
    lease_expires_at: Mapped[datetime | None]
    run_after: Mapped[datetime | None]
    webhook_url: Mapped[str | None]
    webhook_secret: Mapped[bytes | None]
    request_sha256: Mapped[bytes]
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]
    in_progress_at: Mapped[datetime | None]
    finalizing_at: Mapped[datetime | None]
    completed_at: Mapped[datetime | None]
    failed_at: Mapped[datetime | None]
    expired_at: Mapped[datetime | None]
    cancelling_at: Mapped[datetime | None]
    cancelled_at: Mapped[datetime | None]
    traceparent: Mapped[str | None]
    traced_at: Mapped[datetime | None]
    api_key_id: Mapped[UUID | None]

    @property
    def num_ended(self) -> int:
        """Lines that need no more work."""
        return self.num_completed + self.num_failed + self.num_stopped

    @property
    def is_terminal(self) -> bool:
        """True once the batch has ended."""
        return self.state in TERMINAL
