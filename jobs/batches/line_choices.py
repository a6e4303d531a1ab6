"""Lines with several choices: each choice is a job, and a line has ended once all of its jobs have."""

from collections.abc import Sequence

from sqlalchemy import ColumnElement, Select, and_, or_, select
from sqlalchemy.orm import Session, aliased

from jobs import lifecycle
from jobs.models import Job
from jobs.models.batch import Batch
from jobs.states import JobState

# Of the choices that did not complete, the one that says why the line has no answer.
_GRAVEST = (JobState.FAILED, JobState.EXPIRED, JobState.CANCELLED)


def speaks_for_ended_line(batch: Batch) -> ColumnElement[bool]:
    """Match the jobs that end a line: its only one, or the first of its choices once all have ended."""
    # The database reads these only if a line has choices at all.
    other = aliased(Job)
    unfinished = _lines_of(batch, other).where(other.finalized_at.is_(None))
    return or_(Job.num_choices.is_(None), and_(Job.choice == 0, Job.batch_line.not_in(unfinished)))


def others(batch: Batch, lines: Sequence[int]) -> ColumnElement[bool]:
    """Match the other choices of these lines."""
    return and_(Job.batch_id == batch.id, ~Job.is_reported, Job.batch_line.in_(lines), Job.choice > 0)


def cancel_in_vain(session: Session, batch: Batch) -> int:
    """Cancel choices whose line has no answer, since another of its choices ended without one.

    Returns:
        How many it cancelled, or asked to stop.
    """
    ended = and_(Job.finalized_at.is_not(None), Job.state != JobState.COMPLETED.value)
    failed = session.scalars(_lines_of(batch, Job).where(ended).distinct()).all()
    if not failed:
        return 0
    rest = [Job.batch_id == batch.id, ~Job.is_reported, Job.batch_line.in_(failed)]
    return lifecycle.cancel_where(session, [*rest, Job.finalized_at.is_(None)], tenant_id=batch.tenant_id)


def gravity(state: str) -> int:
    """Rank how a choice ended: 0 if it completed, and the higher the graver."""
    return len(_GRAVEST) - _GRAVEST.index(JobState(state)) if state != JobState.COMPLETED else 0


def _lines_of(batch: Batch, job: type[Job]) -> Select[int | None]:
    """Select the lines of a batch's unreported choices."""
    return select(job.batch_line).where(
        job.batch_id == batch.id, ~job.is_reported, job.num_choices.is_not(None)
    )
