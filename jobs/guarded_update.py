"""The guarded UPDATE under every verb of a job's life: it names the states that the verb may start from."""

from typing import Any

from sqlalchemy import ColumnElement, Update, func, update
from sqlalchemy.orm import Session

from jobs.models import Job
from jobs.states import TERMINAL, TRANSITIONS, sources


def move(session: Session, verb: str, *conditions: ColumnElement[bool], **values: Any) -> list[Job]:  # noqa: ANN401  # columns have many types
    """Move the matching jobs and return the rows that moved, as they are now."""
    return list(session.scalars(moving(verb, *conditions, **values).returning(Job)))


def moving(verb: str, *conditions: ColumnElement[bool], **values: Any) -> Update:  # noqa: ANN401  # columns have many types
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
