"""The read side: what callers poll, list and scrape."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Subquery,
    Uuid,
    any_,
    cast,
    func,
    literal_column,
    select,
    union_all,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.orm import Session

from jobs.database import paging, statements
from jobs.database.paging import FoundRows, Page, Range, SearchRange
from jobs.database.rows import matches, require
from jobs.database.statements import Statement
from jobs.engines import registry, reservations, workers
from jobs.ids import first_uuid7
from jobs.job_rows import JOB_ROW, job_of
from jobs.models import Engine, Job, JsonObject, Result, WebhookDispatch, Worker
from jobs.states import TERMINAL, JobState, StopReason
from jobs.tenants import isolation

# A job ranks one priority higher in the last part of its window.
URGENT_PART: Final = 0.25

_KEYS: Final = (Job.id, Job.tenant_id)


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Selects some of a tenant's jobs; a field that is None matches all.

    Attributes:
        metadata: pairs that a job must all have.
        since, until: from which moment on, and before which, it was submitted.
    """

    state: str | None = None
    task: str | None = None
    custom_id: str | None = None
    metadata: dict[str, str] | None = None
    lane: str | None = None
    batch_id: UUID | None = None
    since: datetime | None = None
    until: datetime | None = None

    def conditions(self) -> list[ColumnElement[bool]]:
        """Translate the filter into SQL conditions."""
        found = matches(
            (Job.state, self.state),
            (Job.task, self.task),
            (Job.custom_id, self.custom_id),
            (Job.lane, self.lane),
            (Job.batch_id, self.batch_id),
        )
        if self.metadata:
            found.append(Job.labels.op("@>")(cast(self.metadata, JSONB)))
        return found + self.submitted()

    def submitted(self) -> list[ColumnElement[bool]]:
        """Translate the span of time into conditions on ids, which sort by age."""
        found: list[ColumnElement[bool]] = []
        if self.since is not None:
            found.append(Job.id >= first_uuid7(self.since))
        if self.until is not None:
            found.append(Job.id < first_uuid7(self.until))
        return found

    @property
    def has_index(self) -> bool:
        """Whether an index of a tenant's jobs finds those that match."""
        return self.lane is None and self.batch_id is None and not self.metadata


def get_job(session: Session, job_id: UUID, *, tenant_id: UUID) -> Job:
    """Read the tenant's job.

    Raises:
        NotFoundError: the tenant has no such job.
    """
    return require(session, select(Job).where(Job.id == job_id, Job.tenant_id == tenant_id), kind="job")


def find_jobs(session: Session, *, job_ids: Sequence[UUID], ended_ids: Sequence[UUID]) -> dict[UUID, Job]:
    """Read the jobs in `job_ids`, and those in `ended_ids` that have ended.

    The session's binding decides which tenants are visible; callers that serve several compare `tenant_id`.
    """
    tenant_ids = isolation.tenants_of(session)
    given = {"job_ids": job_ids, "ended_ids": ended_ids, "tenant_ids": tenant_ids and list(tenant_ids)}
    return {job.id: job for job in map(job_of, statements.fetch(session, _FOUND, given))}


_FOUND: Final = Statement(f"""
    SELECT {", ".join(each.name for each in JOB_ROW.values())} FROM jobs
    WHERE (id = ANY(%(job_ids)s::uuid[]) OR id = ANY(%(ended_ids)s::uuid[]) AND finalized_at IS NOT NULL)
        AND (%(tenant_ids)s::uuid[] IS NULL OR tenant_id = ANY(%(tenant_ids)s::uuid[]))
    """)  # noqa: S608  # built from constants


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The fields of a job that change while it waits and runs."""

    state: str
    completion_tokens: int
    cancel_requested: bool


def read_status(session: Session, job_ids: Sequence[UUID]) -> dict[UUID, JobStatus]:
    """Read these fields of many jobs of any tenant; omits jobs that do not exist."""
    rows = session.execute(
        select(Job.id, Job.state, Job.completion_tokens, Job.stop_reason).where(
            Job.id == any_(cast(job_ids, ARRAY(Uuid)))
        )
    )
    return {
        row.id: JobStatus(row.state, row.completion_tokens, row.stop_reason == StopReason.CANCEL)
        for row in rows
    }


def list_jobs(session: Session, which: JobFilter, wanted: Range) -> Page[Job]:
    """List a page of the tenant's jobs that match.

    Raises:
        InvalidRequestError: the cursor is not the id of one of the tenant's jobs.
    """
    paging.check(session, _KEYS, wanted, kind="job")
    query = select(Job).where(Job.tenant_id == wanted.tenant_id, *which.conditions())
    if which.custom_id is None and (which.state is not None or which.task is not None):
        found = _newest_of_each(which, wanted)
        query = select(Job).join(found, found.c.id == Job.id)
    return paging.cut(session.scalars(paging.part(query, _KEYS, wanted)).all(), wanted)


def _newest_of_each(which: JobFilter, wanted: Range) -> Subquery:
    """Select one page of ids for each state that the filter allows.

    Each reads a short range of an index, however long the tenant's history is.
    """
    of_task = [Job.task == which.task] if which.task else []
    ranges = []
    for state in [which.state] if which.state else sorted(JobState):
        # Finished and unfinished jobs have separate partial indexes.
        has_ended = Job.finalized_at.is_not(None) if state in TERMINAL else Job.finalized_at.is_(None)
        ranges.append([has_ended, Job.state == state, *of_task, *which.submitted()])
    mine = Job.tenant_id == wanted.tenant_id
    ids = [paging.part(select(Job.id).where(mine, *each), _KEYS, wanted).subquery() for each in ranges]
    return union_all(*(select(each.c.id) for each in ids)).subquery()


def search_jobs(session: Session, which: JobFilter, wanted: SearchRange) -> FoundRows[Job]:
    """Search for jobs that match, where no index finds them."""
    of_tenant = matches((Job.tenant_id, wanted.tenant_id))
    query = select(Job).where(*which.conditions())
    return paging.search(session, query, Job.id, wanted, among=[*of_tenant, *which.submitted()])


def get_result(session: Session, job_id: UUID) -> Result | None:
    """Read what the job produced, whole or partial.

    Returns:
        None if it produced nothing.
    """
    return session.get(Result, job_id)


def get_embeddings(session: Session, job_ids: Sequence[UUID]) -> dict[UUID, bytes]:
    """Read the vectors of these jobs, by job; those without one are left out."""
    query = select(Result.job_id, Result.embedding).where(
        Result.job_id == any_(cast(list(job_ids), ARRAY(Uuid))), Result.embedding.is_not(None)
    )
    return {job_id: packed for job_id, packed in session.execute(query) if packed is not None}


def count_by_state(session: Session) -> dict[str, int]:
    """Count the jobs in each unfinished state; finished ones are too many to count."""
    # Each count uses a partial index, which the planner finds only for a literal state.
    counts: dict[str, int] = {}
    for state in ("blocked", "preparing", "queued", "running"):
        found = select(func.count()).select_from(Job).where(Job.state == literal_column(f"'{state}'"))
        counts[state] = session.scalar(found) or 0
    return counts


@dataclass(frozen=True, slots=True)
class Backlog:
    """What is queued of one model in one lane.

    Attributes:
        num_tokens: of prompts, and of outputs at most.
        oldest_at: when the oldest job was submitted.
    """

    model: str
    lane: str
    num_jobs: int
    num_tokens: int
    oldest_at: datetime


def backlogs(session: Session) -> list[Backlog]:
    """Sum up the queue, by models and lanes; those without queued jobs are left out."""
    tokens = func.sum(Job.prompt_tokens + Job.max_tokens)
    query = (
        select(Job.model, Job.lane, func.count(), tokens, func.min(Job.created_at))
        .where(Job.state == literal_column("'queued'"))
        .group_by(Job.model, Job.lane)
    )
    return [
        Backlog(model, lane, num_jobs, int(num_tokens or 0), oldest)
        for model, lane, num_jobs, num_tokens, oldest in session.execute(query)
    ]


@dataclass(frozen=True, slots=True)
class EngineUsage:
    """An engine and what is reserved on it.

    Attributes:
        engine: its row. One that no worker could register yet has none; then its sizes are 0.
        held_slots: number of reservations, including draining ones.
        held_blocks: KV blocks that they hold; those that jobs share count once.
        not_ready_reason: why no job starts, apart from an operator's order; None: jobs do.
        refused: a worker that is to feed it and could not register it; None: there is none.
    """

    engine: Engine
    held_slots: int
    held_blocks: int
    not_ready_reason: str | None = None
    refused: Worker | None = None


def engine_usages(session: Session, *, name: str | None = None) -> list[EngineUsage]:
    """List the engines by name, or the one of this name, with what is reserved on each.

    Also those that no worker could register yet.
    """
    booked = reservations.booked()
    query = select(Engine, booked.c.slots, booked.c.blocks, func.clock_timestamp()).outerjoin(
        booked, booked.c.engine_name == Engine.name
    )
    if name is not None:
        query = query.where(Engine.name == name)
    refused = workers.refused(session)
    found = [
        EngineUsage(
            engine,
            held_slots=int(slots or 0),
            held_blocks=int(blocks or 0),
            not_ready_reason=registry.why_not_ready(engine, now=now, refused=refused.get(engine.name)),
            refused=refused.get(engine.name),
        )
        for engine, slots, blocks, now in session.execute(query)
    ]
    registered = {each.engine.name for each in found}
    missing = [each for each in refused.items() if each[0] not in registered and name in (None, each[0])]
    found += [EngineUsage(_unregistered(*each), 0, 0, each[1].refusal, each[1]) for each in missing]
    return sorted(found, key=lambda each: each.engine.name)


def _unregistered(name: str, worker: Worker) -> Engine:
    sizes = dict.fromkeys(
        ("max_batch_size", "max_blocks", "tokens_per_block", "max_input_len", "max_seq_len"), 0
    )
    return Engine(
        name=name, model=worker.model or "", seen_at=worker.seen_at, paused_reason=worker.refusal, **sizes
    )


def models_waiting(session: Session) -> frozenset[str]:
    """Return the models for which jobs wait.

    Reads one index entry per model, however many jobs wait.
    """
    smallest = select(func.min(Job.model).label("model")).where(Job.state == literal_column("'queued'"))
    models = smallest.cte("models", recursive=True)
    greater = smallest.where(Job.model > models.c.model).scalar_subquery()
    models = models.union_all(select(greater).where(models.c.model.is_not(None)))
    return frozenset(session.scalars(select(models.c.model).where(models.c.model.is_not(None))))


def pending_webhooks(session: Session) -> int:
    """Count the events still to deliver, once for each destination."""
    counts = [
        select(func.count())
        .select_from(WebhookDispatch)
        .where(WebhookDispatch.state == literal_column(state))
        for state in ("'pending'", "'sending'")  # literal, so that the planner uses the partial indexes
    ]
    return sum(session.scalar(count) or 0 for count in counts)


class QueuedJob(NamedTuple):
    """A job as a claim reads it from the queue, and as its run needs it; `Job` describes the fields.

    Without its prompt, and without what changes while it runs. No session tracks it.
    """

    id: UUID
    tenant_id: UUID
    lane: str
    rank: int
    task: str
    prompt_tokens: int
    completion_tokens: int
    max_tokens: int
    is_whole: bool
    num_yields: int
    num_rescues: int
    created_at: datetime
    started_at: datetime | None
    expires_at: datetime | None
    text_id: UUID
    summary_id: UUID | None
    family: bytes | None
    choice: int
    adapter: str | None
    model: str
    guide_id: UUID | None
    attempt: int
    sampling: JsonObject
    batch_id: UUID | None
    traceparent: str | None

    def priority(self, now: datetime) -> int:
        """Return its rank, one higher near the end of its window."""
        if self.expires_at is None:
            return self.rank
        left: timedelta = self.expires_at - now
        return self.rank + (left <= URGENT_PART * (self.expires_at - self.created_at))
