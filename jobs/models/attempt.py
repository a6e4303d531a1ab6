"""The table of attempts: what became of every run of a job."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import CheckConstraint, ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from jobs.database.base import Base, one_of
from jobs.states import AttemptOutcome


class Attempt(Base):
    """One run of a job under one lease, over now.

    Written once, in the transaction that takes the job out of `running`, and never changed: so each run but
    the present one has a row, whoever ended it, and none is left open by a process that died. The present run
    is the job with its reservation. Of a job that ran many times the newest are kept (`attempts.MOST_KEPT`).

    Attributes:
        job_id: the job. Deleted with it.
        lease_id: the lease that it ran under; ids of leases sort by age. Its hex digits are the id of the
            request on the engine.
        engine_name: the engine. No foreign key, which would lock the engine's row.
        worker: host and process id of the worker. Null: of a release before migration 0038, or the
            reservation was closed before the end was recorded.
        started_at: when it was claimed. By the worker's clock if the reservation was closed before.
        first_token_at: when its first token came. Null: before any came, or it was not reported.
        answered_at: when its answer was whole, and only had to be stored. Null: it did not end with a whole
            answer, or that was stored apart from others.
        ended_at: when its end was recorded.
        outcome: an `AttemptOutcome`.
        error_code: of the error that ended it; null: none did.
        prompt_tokens: length of the prompt.
        cached_tokens: of these, those that the engine had in its cache. Null: it did not tell, or was not the
            first to get the job.
        completion_tokens: tokens that this run generated, from 0; of a lost one those reported. Null: the
            reservation was closed before.
        blocks: KV-cache blocks that were reserved at its end. Null: as above.
    """

    __tablename__ = "attempts"
    __table_args__ = (
        CheckConstraint(one_of("outcome", sorted(AttemptOutcome)), name="outcome"),
        Index("ix_attempts_engine", "engine_name", "ended_at"),
    )

    job_id: Mapped[UUID] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    lease_id: Mapped[UUID] = mapped_column(primary_key=True)
    engine_name: Mapped[str]
    worker: Mapped[str | None]
    started_at: Mapped[datetime]
    first_token_at: Mapped[datetime | None]
    answered_at: Mapped[datetime | None]
    ended_at: Mapped[datetime]
    outcome: Mapped[str]
    error_code: Mapped[str | None]
    prompt_tokens: Mapped[int]
    cached_tokens: Mapped[int | None]
    completion_tokens: Mapped[int | None]
    blocks: Mapped[int | None]
