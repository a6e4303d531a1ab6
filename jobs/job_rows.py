"""How rows of jobs begin and move: their only constructor, and the guarded UPDATE under every verb."""

from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Update, func, update
from sqlalchemy.orm import Session

from jobs.models import Job
from jobs.models.job import RequestColumns
from jobs.states import TERMINAL, TRANSITIONS, JobState, sources


def new_job(*, is_blocked: bool = False, **columns: Any) -> Job:  # noqa: ANN401  # columns have many types
    """Create a job that waits for others of its tree, or else to be counted."""
    return Job(state=(JobState.BLOCKED if is_blocked else JobState.PREPARING).value, **columns)


def replacement_of(job: Job, job_id: UUID) -> Job:
    """Create a job that is asked to do the same as this one."""
    return new_job(id=job_id, **{name: getattr(job, name) for name in RequestColumns.__annotations__})


def move(session: Session, verb: str, *conditions: ColumnElement[bool], **values: Any) -> list[Job]:  # noqa: ANN401  # columns have many types
    """Move jobs out of the states that the verb may start from; return them as they are now."""
    return list(session.scalars(move_statement(verb, *conditions, **values).returning(Job)))


def move_statement(verb: str, *conditions: ColumnElement[bool], **values: Any) -> Update:  # noqa: ANN401  # columns have many types
    """Build the same UPDATE, for callers that return other columns with it."""
    return (
        update(Job)
        .where(*conditions, Job.state.in_(sources(verb)))
        .values(state=TRANSITIONS[verb][1].value, **values | _final_values(verb))
        .execution_options(synchronize_session=False, populate_existing=True)
    )


def _final_values(verb: str) -> dict[str, Any]:
    if TRANSITIONS[verb][1] not in TERMINAL:
        return {}
    return {"finalized_at": func.clock_timestamp(), "lease_id": None, "lease_expires_at": None}
