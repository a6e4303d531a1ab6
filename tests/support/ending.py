"""Ends of single runs, stored one by one as a worker stores them."""

from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from jobs import leases, lifecycle
from jobs.checkpoints import Output
from jobs.errors import EngineLostError
from jobs.finishing import JobEnd
from jobs.leases import JobProgress
from jobs.models import Job, JsonObject, Reservation
from jobs.states import AttemptOutcome, FinishReason, JobState, StopReason
from jobs.transitions import Lease


def end(session: Session, lease: Lease, verb: str, **fields: Any) -> JobState | None:  # noqa: ANN401  # of each field's type
    """The job's new state; None: its lease is lost, or its row or tree is locked."""
    return store(session, JobEnd(job_id=lease.job_id, lease_id=lease.lease_id, verb=verb, **fields))


def store(session: Session, given: JobEnd) -> JobState | None:
    tree_id = session.scalar(select(Job.summary_id).where(Job.id == given.job_id))
    stored = lifecycle.finish(session, [replace(given, summary_id=tree_id)]).get(given.key)
    session.get(Job, given.job_id, populate_existing=True)  # tests read what they have after the transaction
    return stored.state if stored is not None else None


def completed(
    lease: Lease,
    output: Output,
    finish_reason: FinishReason = FinishReason.STOP,
    *,
    since_first_token: timedelta | None = None,
    since_answer: timedelta = timedelta(0),
    engine_is_done: bool = True,
) -> JobEnd:
    """The end of a run with a whole answer, for a tick."""
    return JobEnd(
        job_id=lease.job_id,
        lease_id=lease.lease_id,
        verb="complete",
        output=output,
        finish_reason=finish_reason,
        since_first_token=since_first_token,
        since_answer=since_answer,
        engine_is_done=engine_is_done,
    )


def complete(session: Session, lease: Lease, output: Output, finish_reason: FinishReason) -> JobState | None:
    return end(session, lease, "complete", output=output, finish_reason=finish_reason)


def fail(session: Session, lease: Lease, error: JsonObject, output: Output | None = None) -> JobState | None:
    return end(session, lease, "fail", error=error, error_code=error["code"], output=output)


def finish_stopped(
    session: Session, lease: Lease, reason: StopReason, output: Output | None
) -> JobState | None:
    return end(session, lease, reason.value, output=output)


def release(
    session: Session, lease: Lease, output: Output | None = None, *, error_code: str | None = None
) -> JobState | None:
    outcome = AttemptOutcome.RELEASED
    return end(session, lease, "release", outcome=outcome, output=output, error_code=error_code)


def yield_slot(session: Session, lease: Lease, output: Output) -> JobState | None:
    return end(session, lease, "release", outcome=AttemptOutcome.YIELDED, output=output)


def release_preempted(session: Session, lease: Lease, output: Output) -> JobState | None:
    return end(session, lease, "release", outcome=AttemptOutcome.PREEMPTED, output=output)


def recount(session: Session, lease: Lease, *, prompt_tokens: int) -> JobState | None:
    outcome = AttemptOutcome.RECOUNTED
    return end(session, lease, "release", outcome=outcome, prompt_tokens=prompt_tokens)


def retry(
    session: Session,
    lease: Lease,
    error: JsonObject,
    *,
    max_attempts: int,
    backoff: timedelta,
    output: Output | None = None,
) -> JobState | None:
    return end(
        session,
        lease,
        "retry",
        outcome=AttemptOutcome.RETRIED,
        error=error,
        error_code=error["code"],
        limit=max_attempts,
        wait=backoff,
        output=output,
    )


def release_after_engine_loss(session: Session, lease: Lease, *, max_rescues: int) -> JobState | None:
    return store(session, lifecycle.lost(lease, EngineLostError.code, max_rescues=max_rescues))


def report_progress(session: Session, lease: Lease, *, completion_tokens: int) -> bool:
    """False: the lease is lost."""
    report = JobProgress(lease, completion_tokens, since_first_token=timedelta(0))
    is_held = lease.lease_id in leases.report_all(session, [report])
    session.get(Job, lease.job_id, populate_existing=True)
    return is_held


def checkpoint(session: Session, lease: Lease, output: Output) -> bool:
    """False: the lease is lost, or the job's row is locked."""
    return lease.lease_id in leases.checkpoint_all(session, [lease], [output])


def drain(session: Session, lease_id: UUID) -> None:
    """Let a reservation drain, whatever becomes of its job."""
    draining = {"state": "draining", "draining_since": func.clock_timestamp()}
    session.execute(update(Reservation).where(Reservation.lease_id == lease_id).values(draining))
