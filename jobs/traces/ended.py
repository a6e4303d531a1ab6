"""Ended jobs whose traces are to be written: taken once each, and given back if the collector is away."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain
from typing import Final
from uuid import UUID

from sqlalchemy import func, select, text, update
from sqlalchemy.orm import Session

from jobs import telemetry
from jobs.models import Attempt, Job
from jobs.models.job import UNTRACED
from jobs.traces import job_spans
from jobs.traces.job_spans import TracedRun
from jobs.traces.span import Span

# In one round: some hundred spans of ordinary jobs.
MAX_JOBS: Final = 100
# What the collector has not taken so long after a job's end is given up.
MAX_AGE: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Taken:
    """What one round writes.

    Attributes:
        job_ids: the jobs that it took.
        spans: of all of them.
        is_full: there may be more.
    """

    job_ids: Sequence[UUID] = ()
    spans: Sequence[Span] = ()
    is_full: bool = False


def take(session: Session, *, limit: int = MAX_JOBS) -> Taken:
    """Take ended jobs that have a trace, so that no other process writes it.

    Args:
        session: the caller's transaction.
        limit: jobs at most. Below `MAX_JOBS`, they are any: one that no collector takes is not always first.
    """
    order = Job.id if limit >= MAX_JOBS else func.random()
    free = select(Job.id).where(text(UNTRACED)).order_by(order).limit(limit)
    job_ids = session.scalars(free.with_for_update(skip_locked=True)).all()
    if not job_ids:
        return Taken()
    jobs = session.scalars(
        update(Job)
        .where(Job.id.in_(job_ids))
        .values(traced_at=func.clock_timestamp())
        .returning(Job)
        .execution_options(synchronize_session=False)
    ).all()
    runs = _runs_of(session, job_ids)
    spans = chain.from_iterable(_spans_of(job, runs[job.id]) for job in jobs)
    return Taken(job_ids, list(spans), is_full=len(job_ids) == limit)


def give_back(session: Session, taken: Taken) -> None:
    """Leave these to a later round, as the collector does not have them; old ones are given up."""
    is_new = Job.finalized_at > func.clock_timestamp() - MAX_AGE
    jobs = update(Job).where(Job.id.in_(taken.job_ids), is_new).values(traced_at=None)
    session.execute(jobs, execution_options={"synchronize_session": False})


def _spans_of(job: Job, runs: Sequence[TracedRun]) -> list[Span]:
    """List the job's spans; none if its row cannot be told, so that it harms no other."""
    try:
        return list(job_spans.spans_of(job, runs))
    except Exception as error:  # noqa: BLE001  # see above
        telemetry.log_failure(telemetry.ROW_FAILED, error, loop="traces", row_id=str(job.id))
        return []


def _runs_of(session: Session, job_ids: Sequence[UUID]) -> dict[UUID, list[TracedRun]]:
    columns = [getattr(Attempt, name) for name in TracedRun._fields]
    rows = session.execute(select(*columns).where(Attempt.job_id.in_(job_ids)).order_by(Attempt.lease_id))
    found: dict[UUID, list[TracedRun]] = defaultdict(list)
    for row in rows:
        found[row.job_id].append(TracedRun(*row))
    return found
