"""How jobs come in: checked against the quota, stored, and queued where their prompts are counted."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy.exc import DatabaseError, DataError, IntegrityError
from sqlalchemy.orm import Session

from jobs import job_rows, transitions
from jobs.database import advisory_locks, statements
from jobs.database.advisory_locks import Lock
from jobs.engines import registry, tensor_rows
from jobs.engines.capacity import Capacity
from jobs.fitting import settle_count
from jobs.models import Job, JsonObject
from jobs.models.new_job import NewJob
from jobs.prompts import store
from jobs.prompts.prefixes import adapted, family_of
from jobs.responses import rows as responses
from jobs.sharing import arrivals, cache
from jobs.states import TERMINAL
from jobs.submission.job_specs import JobSpec
from jobs.tenants import key_quotas, quotas
from jobs.tenants.idempotency import IdempotencyGuard, RequestKind, run_idempotently
from jobs.tenants.key_quotas import KeyQuota
from jobs.tenants.quotas import Admit
from jobs.traces.context import JobsTrace

# Upper bound of what a chat template adds around a message; no real one comes near it.
_TEMPLATE_TOKENS = 256
# Jobs of one request that are stored so long after its first ones count as submitted with these.
_TOGETHER = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A job that the database refuses to store."""

    spec: JobSpec
    error: DatabaseError


@dataclass(frozen=True, slots=True)
class Submitter:
    """The tenant that submits jobs, with which key, and what they may take.

    Attributes:
        default_capacity: what to assume while no engine has registered.
        admit: checks what the jobs take of the tenant's quota, and before that of the key's; None: no limit.
        since: when the first jobs of the same request were stored; those that follow within a minute count
            as submitted then, too. None: these are the first.
        trace: of what it submits now; None: it is in none.
        api_key_id: the key that the jobs count towards; None: a person submits them.
        key_quota: that key's own quotas, which `admit` checks; None: it has none.
    """

    tenant_id: UUID
    default_capacity: Capacity
    admit: Admit | None = None
    since: datetime | None = None
    trace: JobsTrace | None = None
    api_key_id: UUID | None = None
    key_quota: KeyQuota | None = None

    def submitted_at(self, now: datetime) -> datetime:
        """Return when jobs that are stored now were submitted."""
        return now if self.since is None or now - self.since > _TOGETHER else self.since


def submit(session: Session, specs: Sequence[JobSpec], by: Submitter) -> list[Job]:
    """Insert jobs in the given order: queued, preparing, or failed if they never fit.

    Args:
        session: the caller's transaction.
        specs: at most a few thousand; callers with more submit them in slices.
        by: their owner.

    Raises:
        LimitError: the quota has no room; the caller must roll its transaction back.
    """
    new, found = _insert(session, specs, by)
    jobs = [job_rows.inserted(session, job) for job in new]
    transitions.after_end(session, [job for job in jobs if job.state in TERMINAL])
    cache.answer(session, found)
    return jobs


def submit_set(session: Session, specs: Sequence[JobSpec], by: Submitter) -> list[NewJob]:
    """Insert jobs as `submit` does, for callers that need no more of each than what was inserted."""
    new, found = _insert(session, specs, by)
    ended = [job_rows.inserted(session, job) for job in new if job.state in TERMINAL]
    transitions.after_end(session, ended)
    cache.answer(session, found)
    return new


def submit_each(
    session: Session, specs: Sequence[JobSpec], by: Submitter
) -> Iterator[list[NewJob] | Refusal]:
    """Submit jobs in sets; one that the database refuses fails alone, or with its line's other jobs.

    What is refused is found in savepoints that are rolled back, one submission of a tenant at a time, and all
    others are submitted together: so a transaction takes its tenant's allowance once.

    Yields:
        The jobs that were inserted together, in order, or one that was refused: of a line with several
        jobs at least one, and none of them is inserted.
    """
    if not specs:
        return
    try:
        with session.begin_nested():
            new = submit_set(session, specs, by)
    except (DataError, IntegrityError) as error:
        if by.key_quota is not None:
            key_quotas.hold(session, by.key_quota)
        advisory_locks.hold(session, Lock.QUOTA, of=str(by.tenant_id))
        refused = list(_find_refused(session, specs, by, error))
        if not refused:
            raise
        yield from refused
        bad = {_request_of(each.spec) for each in refused}
        yield from submit_each(session, [spec for spec in specs if _request_of(spec) not in bad], by)
    else:
        yield new


def _request_of(spec: JobSpec) -> tuple[UUID | None, int]:
    """Identify the request that a job answers: the line that it has with others, or its own."""
    if spec.num_choices is None or spec.batch_line is None:
        return None, id(spec)
    return spec.batch_id, spec.batch_line


def _find_refused(
    session: Session, specs: Sequence[JobSpec], by: Submitter, error: DatabaseError
) -> Iterator[Refusal]:
    """Halve a set that the database refuses until what it refuses is alone; submit nothing."""
    if len(specs) == 1:
        yield Refusal(specs[0], error)
        return
    middle = len(specs) // 2
    for half in (specs[:middle], specs[middle:]):
        attempt = session.begin_nested()
        try:
            submit_set(session, half, by)
        except (DataError, IntegrityError) as reason:
            attempt.rollback()
            yield from _find_refused(session, half, by, reason)
        else:
            attempt.rollback()


def _insert(
    session: Session, specs: Sequence[JobSpec], by: Submitter
) -> tuple[list[NewJob], dict[UUID, Job]]:
    registered = registry.read_registered(session)
    texts = store.store(session, [text for spec in specs for text in spec.texts], tenant_id=by.tenant_id)
    now = registered.clock
    jobs = _new_jobs(specs, by, registered.capacities, text_ids=texts.ids, now=now)
    for job, spec in zip(jobs, specs, strict=True):
        if spec.sharing and job.state not in TERMINAL:
            job.request_digest = arrivals.digest_of(job, spec.asked_sha256)
    # Those that have no equals go in one message with their quota.
    shares = any(job.request_digest for job in jobs)
    inserting = [job_rows.insertion(jobs)] if jobs and not shares else []
    if by.admit is not None and (taken := quotas.taken_by(jobs, texts.num_new_bytes)).jobs:
        by.admit(session, taken, inserting)
    else:
        statements.fetch_all(session, inserting)
    ages = {job.id: spec.sharing.max_age for job, spec in zip(jobs, specs, strict=True) if spec.sharing}
    found = cache.find(session, jobs, ages, now=now)
    if shares:
        arrivals.insert(session, jobs, answered=found)
    if jobs:
        kept = {job.id: spec.response for job, spec in zip(jobs, specs, strict=True) if spec.response}
        passed = {job.id: spec.tensors for job, spec in zip(jobs, specs, strict=True) if spec.tensors}
        tensor_rows.insert(session, passed, tenant_id=by.tenant_id, text_ids=texts.ids)
        responses.insert(session, kept, tenant_id=by.tenant_id, text_ids=texts.ids)
    return jobs, found


def _new_jobs(
    specs: Sequence[JobSpec],
    by: Submitter,
    capacities: Mapping[str, Sequence[Capacity]],
    *,
    text_ids: Mapping[bytes, UUID],
    now: datetime,
) -> list[NewJob]:
    """Make the jobs: queued, preparing, or failed if they fit none of their model's engines."""
    jobs = [_new_job(spec, by, text_ids=text_ids, now=now) for spec in specs]
    for job, spec in zip(jobs, specs, strict=True):
        limits = capacities.get(job.model) or [by.default_capacity]
        if spec.text.counted:
            settle_count(job, num_tokens=spec.text.counted.num_tokens, limits=limits, now=now)
            family = family_of(spec.text.counted.prefixes, spec.text.counted.num_tokens, by.tenant_id)
            job.family = adapted(family, spec.adapter)
        else:
            job.reserved_tokens = demand(spec, limits)
    if by.trace is not None:
        by.trace.mark(jobs)
    return jobs


def demand(spec: JobSpec, limits: Sequence[Capacity]) -> int:
    """Compute the tokens that a job takes of its tenant's quota.

    That is max_tokens plus the prompt. A prompt that is not counted yet is bounded by its bytes and by the
    longest prompt that any engine accepts.
    """
    if spec.text.counted:
        return spec.text.counted.num_tokens + spec.max_tokens
    longest = max(limit.max_input_len for limit in limits)
    return min(spec.text.num_bytes + _TEMPLATE_TOKENS, longest) + spec.max_tokens


def submit_once(
    session: Session, spec: JobSpec, guard: IdempotencyGuard, *, by: Submitter
) -> tuple[Job, bool]:
    """Submit a job, or return the one that an earlier request with this key made.

    Returns:
        The job, and whether an earlier request made it.

    Raises:
        IdempotencyConflictError: the key was used with another body.
        LimitError: as `submit`.
    """

    def make(session: Session) -> Job:
        (job,) = submit(session, [spec], by)
        return job

    return run_idempotently(session, guard, make, tenant_id=by.tenant_id, kind=_ONE_JOB)


def submit_slice_once(
    session: Session,
    specs: Sequence[JobSpec],
    guard: IdempotencyGuard | None,
    *,
    by: Submitter,
) -> tuple[list[UUID], list[NewJob], list[Refusal]]:
    """Submit these jobs in sets, or find those that an earlier request made.

    Args:
        session: the caller's transaction.
        specs: as `submit`.
        guard: of the request; None: it has no key.
        by: their owner.

    Returns:
        The jobs' ids in the order of `specs`, those of the jobs that are new (all or none), and the jobs
        that the database refuses.

    Raises:
        IdempotencyConflictError: the key was used for other jobs.
        LimitError: as `submit`.
    """
    new: list[NewJob] = []
    refused: list[Refusal] = []

    def make(session: Session) -> list[UUID]:
        for each in submit_each(session, specs, by):
            if isinstance(each, Refusal):
                refused.append(each)
            else:
                new.extend(each)
        return [job.id for job in new]

    if guard is None:
        return make(session), new, refused
    job_ids, _ = run_idempotently(session, guard, make, tenant_id=by.tenant_id, kind=_SOME_JOBS)
    return job_ids, new, refused


def _new_job(spec: JobSpec, by: Submitter, *, text_ids: Mapping[bytes, UUID], now: datetime) -> NewJob:
    return NewJob(
        tenant_id=by.tenant_id,
        text_id=text_ids[spec.text.sha256],
        guide_id=None if spec.guide is None else text_ids[spec.guide.sha256],
        is_whole=spec.is_whole,
        lane=spec.lane.value,
        rank=spec.rank,
        task=spec.task,
        model=spec.model,
        adapter=spec.adapter,
        max_tokens=spec.max_tokens,
        sampling=spec.sampling or {},
        custom_id=spec.custom_id,
        labels=spec.metadata or {},
        webhook_url=spec.webhook_url,
        webhook_secret=spec.webhook_secret,
        webhook_includes_output=spec.webhook_includes_output,
        created_at=by.submitted_at(now),
        expires_at=now + spec.window if spec.window else spec.expires_at,
        batch_id=spec.batch_id,
        batch_line=spec.batch_line,
        choice=spec.choice,
        num_choices=spec.num_choices,
        traceparent=spec.traceparent,
        api_key_id=spec.api_key_id or by.api_key_id,
    )


def _find_ids(_session: Session, recorded: UUID | JsonObject) -> list[UUID] | None:
    """Read the ids that the key recorded, including those of jobs deleted since.

    So a slice is never submitted again in part.
    """
    ids = recorded.get("job_ids") if isinstance(recorded, dict) else None
    return [UUID(hex=each) for each in ids] if isinstance(ids, list) else None


def _ids_to_record(job_ids: list[UUID]) -> JsonObject:
    return {"job_ids": [each.hex for each in job_ids]}


_ONE_JOB: RequestKind[Job] = RequestKind(
    "job", record=lambda job: job.id, find=lambda session, job_id: session.get(Job, job_id)
)
_SOME_JOBS: RequestKind[list[UUID]] = RequestKind("jobs", record=_ids_to_record, find=_find_ids)
