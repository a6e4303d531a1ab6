"""What keeps the queue healthy, one bounded round each; any number of service workers may do them at once."""

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial

from sqlalchemy import literal_column, select
from sqlalchemy.orm import Session, sessionmaker

from jobs import ids, lifecycle, removal, submission, summaries, telemetry, usage, webhook_endpoints
from jobs.database import database_now, transaction
from jobs.models import Job
from jobs.preparation import Counting
from jobs.settings import JobSettings
from jobs.states import TERMINAL, JobState
from worker.turns import TurnTaker

Sessions = sessionmaker[Session]


def _never() -> bool:
    return False


def prepare(
    taker: TurnTaker, work: Counting, *, limit: int, is_stopping: Callable[[], bool] = _never
) -> tuple[int, list[Job]]:
    """Count prompts that wait for it, up to `limit` of them.

    Returns:
        How many were looked at, and their jobs that are queued or have failed now.
    """
    prepared: list[Job] = []
    for num_taken in range(limit):
        taken = None if is_stopping() else taker.take(work)
        if taken is None:
            return num_taken, prepared
        if taken.result is not None:
            prepared.append(taken.result)
    return limit, prepared


def rescue(session: Session, *, now: datetime, max_rescues: int) -> list[Job]:
    """Jobs whose worker fell silent are queued again, or ended."""
    rescued = lifecycle.rescue(session, now=now, max_rescues=max_rescues)
    for job in rescued:
        telemetry.logger().warning(
            telemetry.JOB_RESCUED, job_id=ids.job_id(job.id), attempt=job.attempt, num_rescues=job.num_rescues
        )
    return rescued


def expire(session: Session, *, now: datetime) -> int:
    """Jobs whose window is over have expired, or their workers are asked to end them; how many."""
    return lifecycle.expire(session, now=now)


def reject_misfits(session: Session) -> list[Job]:
    """Queued jobs that no engine can hold any more have failed."""
    return submission.reject_misfits(session)


def has_queued(session: Session) -> bool:
    """Whether a job waits for an engine."""
    waiting = select(Job.id).where(Job.state == literal_column("'queued'")).limit(1)
    return session.scalar(waiting) is not None


def prune(
    sessions: Sessions, settings: JobSettings, *, is_stopping: Callable[[], bool] = _never
) -> dict[str, int]:
    """What is older than its retention is gone, or as much as there was time for; rows by kind."""
    with transaction(sessions) as session:
        now = database_now(session)
    kept_since = now - timedelta(days=settings.retention_days)
    keys_since = now - timedelta(hours=settings.idempotency_hours)
    return {
        "jobs": _until_none(sessions, partial(removal.prune_jobs, before=kept_since), is_stopping),
        "events": _until_none(sessions, partial(removal.prune_events, before=kept_since), is_stopping),
        "usage_entries": _until_none(sessions, usage.add_up, is_stopping),
        "idempotency_keys": _until_none(
            sessions, partial(removal.prune_idempotency_keys, before=keys_since), is_stopping
        ),
    }


def sweep_deleted(sessions: Sessions) -> int:
    """Remove a part of what was too large to go in the request that deleted it; count the rows."""
    num_removed = 0
    for sweep in (webhook_endpoints.sweep, summaries.sweep):
        with transaction(sessions) as session:
            num_removed += sweep(session)
    return num_removed


def any_queued(jobs: list[Job]) -> bool:
    """Whether an engine may have something to do with these."""
    return any(job.state == JobState.QUEUED for job in jobs)


def any_to_tell(jobs: list[Job]) -> bool:
    """Whether somebody waits to hear of these."""
    return any(job.state in TERMINAL and job.webhook_url is not None for job in jobs)


def _until_none(sessions: Sessions, remove: Callable[[Session], int], is_stopping: Callable[[], bool]) -> int:
    """Short transactions until nothing is left to remove, or it must stop; how much went."""
    total = 0
    while not is_stopping():
        with transaction(sessions) as session:
            num_removed = remove(session)
        if num_removed == 0:
            break
        total += num_removed
    return total
