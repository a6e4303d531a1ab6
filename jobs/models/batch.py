"""The table of batches."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, SmallInteger, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from jobs.database.base import Base, JsonObject, one_of
from jobs.ids import uuid7
from jobs.models.turn import VALIDATION, indexes
from jobs.states.batch import ACTIVE, TERMINAL, BatchState, Endpoint

_ACTIVE_SQL = one_of("state", sorted(ACTIVE))


class Batch(Base):
    """Many requests in one file, run as jobs. Files are named without foreign keys: they go on their own.

    Attributes:
        endpoint: that every line asks for.
        output_expires_seconds: life of the result files from their completion; None: the default.
        retry_of: the batch whose failed lines these are.
        model: of the first line.
        errors: why the file was not accepted: `{code, line, message, param}` each.
        num_lines: requests in the file; 0 until it is accepted.
        num_completed, num_failed: as callers see them.
        num_stopped: lines that were cancelled or expired.
        next_offset, next_line: where in the file the lines begin that are neither jobs nor refused yet.
        is_expanded: no such lines are left.
        num_validations: times that checking its file was begun.
        lease_id, lease_expires_at: of the worker that checks its file.
        run_after: nothing is done for it before this, after a failure.
        num_failures: of moving it on, in a row.
        webhook_url: told when it has ended.
        webhook_secret: signs that, sealed; None: the tenant's default does.
        request_sha256: of what was asked, to recognize a client that repeats itself.
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
        Index("ix_batches_active", "id", postgresql_where=text(_ACTIVE_SQL)),
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
    input_tokens: Mapped[int] = mapped_column(BigInteger, server_default="0")
    output_tokens: Mapped[int] = mapped_column(BigInteger, server_default="0")
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

    @property
    def num_ended(self) -> int:
        """Lines that need no more work."""
        return self.num_completed + self.num_failed + self.num_stopped

    @property
    def is_terminal(self) -> bool:
        """Whether it has ended."""
        return self.state in TERMINAL
