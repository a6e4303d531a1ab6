"""How rows of jobs begin and move: their only constructors, and the guarded UPDATE under every verb."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from sqlalchemy import ColumnElement, Update, func, text, update
from sqlalchemy.orm import Session, make_transient_to_detached

from jobs.database import statements
from jobs.database.statements import Query, insert_set
from jobs.models import Job
from jobs.models.job import LEADS, RequestColumns
from jobs.prompts.prefixes import ADAPTED_FAMILY, family_place
from jobs.states import TERMINAL, TRANSITIONS, JobState, sources

# Columns that every insertion of new jobs sets.
_COMMON: Final = (
    *("id", "tenant_id", "text_id", "state", "lane", "rank", "task", "model", "max_tokens", "prompt_tokens"),
    *("reserved_tokens", "sampling", "created_at", "api_key_id"),
)
# Those of which most jobs have none; an insertion of such jobs leaves them to the table's defaults.
_RARE: Final = (
    *("guide_id", "adapter", "is_whole", "custom_id", "labels", "webhook_url", "webhook_secret"),
    *("webhook_includes_output", "expires_at", "batch_id", "batch_line", "choice", "num_choices", "family"),
    *("error", "finalized_at", "request_digest", "traceparent"),
)
# The columns of a row, by the attributes that they are of a job.
JOB_ROW: Final = {each.key: each.columns[0] for each in Job.__mapper__.column_attrs}
# Columns that are not null where nobody sets them, as the table's defaults are.
_DEFAULTS: Final[Mapping[str, Any]] = dict.fromkeys(JOB_ROW) | {
    **dict.fromkeys(("rank", "reserved_tokens", "completion_tokens", "attempt", "choice"), 0),
    **dict.fromkeys(("num_rescues", "num_yields", "num_preemptions", "num_preparations"), 0),
    **dict.fromkeys(("is_whole", "webhook_includes_output", "is_reported", "has_twins"), False),
    "state": JobState.PREPARING.value,
}


def unstored(**columns: Any) -> Job:  # noqa: ANN401  # columns have many types
    """Create a job that no session tracks, whole as its row will be; `insertion` inserts it."""
    return _whole({**_DEFAULTS, "sampling": {}, "labels": {}, **columns})


def _whole(columns: Mapping[str, Any]) -> Job:
    """Create a job with all its columns. None is a change, which SQLAlchemy takes 50 us a job to record."""
    job = new_job()
    vars(job).update(columns)
    return job


def insert_jobs(session: Session, new: Sequence[Job]) -> None:
    """Insert jobs in one statement."""
    statements.fetch_all(session, [insertion(new)])


def rehearse(session: Session) -> None:
    """Execute what inserts jobs, without and with a webhook; insert none."""
    for names in (_COMMON, (*_COMMON, "webhook_url")):
        none = {JOB_ROW[name].name: list[object]() for name in names}
        statements.fetch(session, *insert_set(Job, none))


def insert_leaders(session: Session, new: Sequence[Job]) -> set[UUID]:
    """Insert those of these jobs that have no unfinished equal; return their ids.

    A unique index decides, so of two transactions that insert equal jobs one waits for the other.
    """
    (rows,) = statements.fetch_all(session, [insertion(new, then=_UNLESS_ONE_LEADS)])
    return {job_id for (job_id,) in rows}


_UNLESS_ONE_LEADS: Final = f"ON CONFLICT (request_digest) WHERE {LEADS} DO NOTHING RETURNING id"


def insert_twins(session: Session, new: Sequence[Job]) -> None:
    """Insert jobs that wait for an equal one."""
    for job in new:
        job.state = JobState.BLOCKED.value
    insert_jobs(session, new)


def insertion(new: Sequence[Job], *, then: str = "") -> Query:
    """Build the query that inserts jobs, at least one."""
    return insert_set(Job, _values(new), then=then)


def _values(new: Sequence[Job]) -> dict[str, Sequence[object]]:
    """Return the columns of these jobs."""
    values = {name: [getattr(job, name) for job in new] for name in (*_COMMON, *_RARE)}
    return {JOB_ROW[name].name: each for name, each in values.items() if name in _COMMON or any(each)}


def attach(session: Session, jobs: Iterable[Job]) -> None:
    """Let the session track jobs that it has inserted with `insertion`."""
    for job in jobs:
        _known(session, job)


def job_of(row: Sequence[Any]) -> Job:
    """Return the job of a row with the columns `JOB_ROW`; no session tracks it."""
    return _whole(dict(zip(JOB_ROW, row, strict=True)))


def written(session: Session, row: Sequence[Any]) -> Job:
    """Return the job of a row with the columns `JOB_ROW` that a statement in SQL has just written."""
    job = job_of(row)
    return session.identity_map.get(Job.__mapper__.identity_key_from_instance(job)) or _known(session, job)


def _known(session: Session, job: Job) -> Job:
    make_transient_to_detached(job)
    session.add(job)
    return job


def new_job(*, is_blocked: bool = False, **columns: Any) -> Job:  # noqa: ANN401  # columns have many types
    """Create a job that waits for others of its tree, or else to be counted."""
    return Job(**{"state": (JobState.BLOCKED if is_blocked else JobState.PREPARING).value} | columns)


def replacement_of(job: Job, job_id: UUID) -> Job:
    """Create a job that is asked to do the same as this one."""
    return new_job(id=job_id, **{name: getattr(job, name) for name in RequestColumns.__annotations__})


def queue_counted(session: Session, lengths: Mapping[UUID, int]) -> None:
    """Queue jobs that this transaction has locked, and that fit, by the lengths of their prompts."""
    values = {
        "ids": list(lengths),
        "lengths": list(lengths.values()),
        "places": [family_place(each) + 1 for each in lengths.values()],  # from 1, as Postgres counts
    }
    if lengths:
        session.connection().execute(_QUEUE_COUNTED, values)


_QUEUE_COUNTED: Final = text(
    f"""
    UPDATE jobs SET state = '{TRANSITIONS["prepare"][1].value}', prompt_tokens = counted.length,
        reserved_tokens = counted.length + max_tokens, lease_id = NULL, lease_expires_at = NULL,
        family = CASE WHEN counted.place > 0 THEN
            {ADAPTED_FAMILY.format("nullif(substr(texts.prefixes, counted.place, 8), '')")} END
    FROM unnest(CAST(:ids AS uuid[]), CAST(:lengths AS integer[]), CAST(:places AS integer[]))
        AS counted (id, length, place), texts
    WHERE jobs.id = counted.id AND jobs.id = ANY(CAST(:ids AS uuid[])) AND texts.id = jobs.text_id
        AND state = '{JobState.PREPARING.value}'
    """  # noqa: S608  # nothing in it comes from outside
)


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


def may(verb: str) -> str:
    """Write the condition of a statement in SQL that a job is in a state from which the verb may start.

    The states come from a subquery, so that the planner does not know them: for the literal 'queued' it would
    read a whole partial index of the queue if the last ANALYZE found the queue empty.
    """
    states = ", ".join(f"'{state}'" for state in sorted(sources(verb)))
    return f"jobs.state = ANY((SELECT ARRAY[{states}])::text[])"


def moves(verb: str) -> str:
    """Write what a statement in SQL must set for the verb, whatever else it sets."""
    target = TRANSITIONS[verb][1]
    final = ", finalized_at = clock_timestamp(), lease_id = NULL, lease_expires_at = NULL"
    return f"state = '{target.value}'{final if target in TERMINAL else ''}"


def expire_loaded(session: Session, job_ids: Collection[UUID]) -> None:
    """Let the session read these jobs again when it next looks at them, as SQL has changed them."""
    for job_id in job_ids:
        job = session.identity_map.get(Job.__mapper__.identity_key_from_primary_key((job_id,)))
        if job is not None:
            session.expire(job)


def _final_values(verb: str) -> dict[str, Any]:
    if TRANSITIONS[verb][1] not in TERMINAL:
        return {}
    return {"finalized_at": func.clock_timestamp(), "lease_id": None, "lease_expires_at": None}
