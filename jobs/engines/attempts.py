"""Attempts: every run of a job leaves a row, in the transaction that takes the job out of `running`."""

from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from jobs.models import Attempt, Job, Reservation
from jobs.states import JobState

# Of one job. An engine may turn it away every few seconds for days.
MOST_KEPT: Final = 100
# When a lease was made, for a run whose reservation was closed before its end was recorded.
_LEASED_AT: Final = (
    "to_timestamp(('x' || left(translate(run.lease_id::text, '-', ''), 12))::bit(48)::bigint / 1e3)"
)


def insertion(runs: str) -> str:
    """Write the statement that keeps an attempt for each of these runs, unless there is one.

    Args:
        runs: a FROM item in SQL with the columns `job_id`, `lease_id`, `engine_name`, `started_at` (of the
            job's first run), `first_token_at`, `answered_at`, `ended_at`, `outcome`, `error_code`,
            `prompt_tokens`, `cached_tokens` and `produced` (in all runs). The transaction holds the jobs'
            rows.
    """
    return f"""
    INSERT INTO attempts (job_id, lease_id, engine_name, worker, started_at, first_token_at, answered_at,
        ended_at, outcome, error_code, prompt_tokens, cached_tokens, completion_tokens, blocks)
    SELECT run.job_id, run.lease_id, run.engine_name, reserved.worker, begun.at,
        CASE WHEN run.first_token_at >= begun.at THEN run.first_token_at END,
        CASE WHEN run.answered_at IS NOT NULL THEN greatest(begun.at, run.answered_at) END, run.ended_at,
        run.outcome, run.error_code, run.prompt_tokens, run.cached_tokens,
        greatest(run.produced, reserved.output_before) - reserved.output_before, reserved.blocks
    FROM {runs} AS run LEFT JOIN reservations AS reserved ON reserved.lease_id = run.lease_id,
        LATERAL (SELECT coalesce(
            reserved.created_at, least(greatest(run.started_at, {_LEASED_AT}), run.ended_at)
        )) AS begun(at)
    WHERE run.engine_name IS NOT NULL
    ON CONFLICT DO NOTHING
    """  # noqa: S608  # built from constants


def pruning(runs: str) -> str:
    """Write the statement that makes room for one more attempt of each of these jobs.

    Args:
        runs: a FROM item in SQL with the column `id`.
    """
    return f"""
    DELETE FROM attempts USING {runs} AS run
    WHERE attempts.job_id = run.id AND attempts.job_id = ANY(ARRAY(SELECT id FROM {runs}))
        AND attempts.lease_id < (
        SELECT kept.lease_id FROM attempts AS kept WHERE kept.job_id = run.id
        ORDER BY kept.lease_id DESC OFFSET {MOST_KEPT - 2} LIMIT 1
    )
    """  # noqa: S608  # built from constants


class Run(NamedTuple):
    """A run of a job, over or not; `Attempt` describes the fields.

    While it runs, `ended_at` and `outcome` are None, and `completion_tokens` are those reported.
    """

    lease_id: UUID
    engine_name: str
    worker: str | None
    started_at: datetime
    first_token_at: datetime | None
    ended_at: datetime | None
    outcome: str | None
    error_code: str | None
    prompt_tokens: int
    cached_tokens: int | None
    completion_tokens: int | None
    blocks: int | None


def of_job(session: Session, job_id: UUID) -> list[Run]:
    """List the runs of a job that are over, oldest first; at most `MOST_KEPT`."""
    query = select(*(getattr(Attempt, name) for name in Run._fields)).where(Attempt.job_id == job_id)
    return [Run(*row) for row in session.execute(query.order_by(Attempt.lease_id))]


def present(session: Session, job_id: UUID, *, tenant_id: UUID | None) -> Run | None:
    """Find the run of a job that is not over.

    Args:
        session: one that sees reservations.
        job_id: of the job.
        tenant_id: its owner; None: of any tenant.

    Returns:
        None: it does not run, or its reservation is closed, as its end is about to be recorded.
    """
    mine = [] if tenant_id is None else [Job.tenant_id == tenant_id]
    query = (
        select(Job, Reservation)
        .join(Reservation, Reservation.lease_id == Job.lease_id)
        .where(Job.id == job_id, *mine, Job.state == JobState.RUNNING)
    )
    found = session.execute(query).one_or_none()
    if found is None:
        return None
    job, reserved = found
    is_of_this_run = job.first_token_at is not None and job.first_token_at >= reserved.created_at
    return Run(
        lease_id=reserved.lease_id,
        engine_name=reserved.engine_name,
        worker=reserved.worker,
        started_at=reserved.created_at,
        first_token_at=job.first_token_at if is_of_this_run else None,
        ended_at=None,
        outcome=None,
        error_code=None,
        prompt_tokens=job.prompt_tokens or 0,
        cached_tokens=None,
        completion_tokens=max(0, job.completion_tokens - reserved.output_before),
        blocks=reserved.blocks,
    )
