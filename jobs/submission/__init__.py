"""How jobs come in: checked against the quota, stored, and queued where their prompts are counted."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy.exc import DatabaseError, DataError, IntegrityError
from sqlalchemy.orm import Session

from jobs import job_rows, lifecycle
from jobs.database import advisory_locks, statements
from jobs.database.advisory_locks import Lock
from jobs.engines import registry, tensor_rows
from jobs.engines.capacity import Capacity
from jobs.fitting import settle_count
from jobs.ids import uuid7
from jobs.models import Job
from jobs.prompts import store
from jobs.prompts.prefixes import adapted, family_of
from jobs.responses import rows as responses
from jobs.sharing import arrivals, cache
from jobs.states import TERMINAL
from jobs.submission.job_specs import JobSpec
from jobs.tenants import key_quotas, quotas
from jobs.tenants.key_quotas import KeyQuota
from jobs.tenants.quotas import Admit
from jobs.traces.context import JobsTrace

# Upper bound of what a chat template adds around a message; no real one comes near it.
_TEMPLATE_TOKENS = 256
# Jobs of one request that are stored so long after its first ones count as submitted with these.
_TOGETHER = timedelta(minutes=1)


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
    """Insert jobs in the given order: queued, preparing, or ended.

    Those that never fit have failed, and those that take an equal job's result are complete.

    Args:
        session: the caller's transaction.
        specs: at most a few thousand; callers with more submit them in slices.
        by: their owner.

    Raises:
        LimitError: the quota has no room; the caller must roll its transaction back.
        DatabaseError: the database refuses one; likewise, or see `submit_each`.
    """
    if not specs:
        return []
    registered = registry.read_registered(session)
    texts = store.store(session, [text for spec in specs for text in spec.texts], tenant_id=by.tenant_id)
    now = registered.clock
    jobs = _new_jobs(specs, by, registered.capacities, text_ids=texts.ids, now=now)
    # Those that have no equals go in one message with their quota.
    shares = any(job.request_digest for job in jobs)
    inserting = [] if shares else [job_rows.insertion(jobs)]
    if by.admit is not None and (taken := quotas.taken_by(jobs, texts.num_new_bytes)).jobs:
        by.admit(session, taken, inserting)
    else:
        statements.fetch_all(session, inserting)
    pairs = list(zip(jobs, specs, strict=True))
    ages = {job.id: spec.sharing.max_age for job, spec in pairs if spec.sharing}
    found = cache.find(session, jobs, ages, now=now)
    if shares:
        arrivals.insert(session, jobs, answered=found)
    kept = {job.id: spec.response for job, spec in pairs if spec.response}
    passed = {job.id: spec.tensors for job, spec in pairs if spec.tensors}
    tensor_rows.insert(session, passed, tenant_id=by.tenant_id, text_ids=texts.ids)
    responses.insert(session, kept, tenant_id=by.tenant_id, text_ids=texts.ids)
    job_rows.attach(session, jobs)
    if ended := [job for job in jobs if job.state in TERMINAL]:
        lifecycle.after_end(session, ended)
    cache.answer(session, found)
    return jobs


def _new_jobs(
    specs: Sequence[JobSpec],
    by: Submitter,
    capacities: Mapping[str, Sequence[Capacity]],
    *,
    text_ids: Mapping[bytes, UUID],
    now: datetime,
) -> list[Job]:
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
        if spec.sharing and job.state not in TERMINAL:
            job.request_digest = arrivals.digest_of(job, spec.asked_sha256)
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


def _new_job(spec: JobSpec, by: Submitter, *, text_ids: Mapping[bytes, UUID], now: datetime) -> Job:
    return job_rows.unstored(
        id=uuid7(),
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


def submit_each(session: Session, specs: Sequence[JobSpec], by: Submitter) -> list[Job | DatabaseError]:
    """Submit a slice of jobs, of which one that the database refuses fails alone.

    Of a batch's line with several jobs, all are refused if one is. What is refused is found in savepoints
    that are rolled back, one submission of a tenant at a time, and all others are submitted together: so a
    transaction takes its tenant's allowance once.

    Returns:
        The jobs in the given order, or why the database refuses them.

    Raises:
        LimitError: as `submit`.
    """
    try:
        with session.begin_nested():
            return [*submit(session, specs, by)]
    except (DataError, IntegrityError) as error:
        if by.key_quota is not None:
            key_quotas.hold(session, by.key_quota)
        advisory_locks.hold(session, Lock.QUOTA, of=str(by.tenant_id))
        refused = {_request_of(spec): reason for spec, reason in _find_refused(session, specs, by, error)}
        if not refused:
            raise
    rest = iter(submit_each(session, [spec for spec in specs if _request_of(spec) not in refused], by))
    return [refused.get(_request_of(spec)) or next(rest) for spec in specs]


def _request_of(spec: JobSpec) -> tuple[UUID | None, int]:
    """Identify the request that a job answers: the line that it has with others, or its own."""
    if spec.num_choices is None or spec.batch_line is None:
        return None, id(spec)
    return spec.batch_id, spec.batch_line


def _find_refused(
    session: Session, specs: Sequence[JobSpec], by: Submitter, error: DatabaseError
) -> Iterator[tuple[JobSpec, DatabaseError]]:
    """Halve a set that the database refuses until what it refuses is alone; submit nothing."""
    if len(specs) == 1:
        yield specs[0], error
        return
    middle = len(specs) // 2
    for half in (specs[:middle], specs[middle:]):
        attempt = session.begin_nested()
        try:
            submit(session, half, by)
        except (DataError, IntegrityError) as reason:
            attempt.rollback()
            yield from _find_refused(session, half, by, reason)
        else:
            attempt.rollback()
