"""Attempts: every run of a job leaves a row, in the transaction that takes the job out of `running`."""

from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from sqlalchemy import Integer, Text, Uuid, bindparam, select, text
from sqlalchemy.orm import Session

from jobs.models import Attempt, Job, Reservation
from jobs.states import AttemptOutcome, JobState

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


def record(
    session: Session,
    lease_id: UUID,
    outcome: AttemptOutcome,
    *,
    job_id: UUID,
    error_code: str | None = None,
    produced: int | None = None,
    cached_tokens: int | None = None,
) -> None:
    """Keep how the present run of a job ends; what was recorded of it first stays.

    The caller holds the job's row and moves it out of `running` next. Nothing happens if the lease is lost.

    Args:
        session: the caller's transaction.
        lease_id: that it runs under.
        outcome: how it ends.
        job_id: the job.
        error_code: of the error that ends it.
        produced: tokens that the job has generated in all; None: those reported.
        cached_tokens: as in `Attempt`.
    """
    given = {
        "job_id": job_id,
        "lease_id": lease_id,
        "outcome": outcome.value,
        "error_code": error_code,
        "produced": produced,
        "cached_tokens": cached_tokens,
    }
    session.execute(_RECORD, given)


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


_RECORD: Final = text(f"""
    WITH run AS (
        SELECT id AS job_id, lease_id, engine_name, started_at, first_token_at,
            CAST(NULL AS timestamptz) AS answered_at, clock_timestamp() AS ended_at, :outcome AS outcome,
            :error_code AS error_code, prompt_tokens, :cached_tokens AS cached_tokens,
            coalesce(:produced, completion_tokens) AS produced
        FROM jobs WHERE id = :job_id AND lease_id = :lease_id AND state = 'running'
    ), dropped AS (
        DELETE FROM attempts WHERE job_id = :job_id AND lease_id < (
            SELECT lease_id FROM attempts WHERE job_id = :job_id
            ORDER BY lease_id DESC OFFSET {MOST_KEPT - 2} LIMIT 1
        )
    ) {insertion("run")}
""").bindparams(  # noqa: S608  # built from constants
    bindparam("job_id", type_=Uuid()),
    bindparam("lease_id", type_=Uuid()),
    bindparam("outcome", type_=Text()),
    bindparam("error_code", type_=Text()),
    bindparam("cached_tokens", type_=Integer()),
    bindparam("produced", type_=Integer()),
)
