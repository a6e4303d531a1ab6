"""How jobs come in: submitted, counted, and queued or refused because they can never fit."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import func, literal_column, or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from jobs import engines, events, texts
from jobs.admission import Capacity, Excess, find_excess
from jobs.database import database_now
from jobs.errors import IdempotencyConflictError, LongbatchError
from jobs.ids import uuid7
from jobs.models import IdempotencyKey, Job, JsonObject
from jobs.states import TERMINAL, TRANSITIONS, JobState
from jobs.texts import Counter, NewText

# Far above what counting takes; a worker that is frozen meanwhile keeps its job for so long.
_MAX_COUNTING = "5min"


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What a caller asks for, validated.

    Attributes:
        text: the prompt; with its ids when it was small enough to count at once.
        rank: -1 low, 0 normal, 1 high.
        window: it expires this long after it was accepted; None: never.
        sampling: temperature, top_p, top_k, seed, stop as given.
    """

    text: NewText
    task: str
    model: str
    max_tokens: int
    rank: int = 0
    sampling: JsonObject | None = None
    custom_id: str | None = None
    metadata: JsonObject | None = None
    webhook_url: str | None = None
    window: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Once:
    """A caller's idempotency key.

    Attributes:
        key: as sent.
        request_sha256: of the request's body; another body under the same key is a conflict.
        valid_for: how long the key is remembered.
    """

    key: str
    request_sha256: bytes
    valid_for: timedelta


def submit(session: Session, specs: Sequence[JobSpec], *, tenant_id: UUID, fallback: Capacity) -> list[Job]:
    """The jobs stand in the table, in the given order: queued, preparing, or failed if they never fit.

    Args:
        session: the caller's transaction.
        specs: at most a few thousand; callers with more send them in parts.
        tenant_id: whose jobs they are.
        fallback: the limits while no engine has registered yet.
    """
    text_ids = texts.store(session, [spec.text for spec in specs], tenant_id=tenant_id)
    now, capacities = engines.look(session)
    jobs = [
        _new_job(spec, tenant_id=tenant_id, text_id=text_ids[spec.text.sha256], now=now) for spec in specs
    ]
    for job, spec in zip(jobs, specs, strict=True):
        if spec.text.counted:
            limits = capacities.get(job.model) or [fallback]
            _settle_count(job, num_tokens=spec.text.counted.num_tokens, limits=limits, now=now)
    session.add_all(jobs)
    session.flush()
    events.append(session, [job for job in jobs if job.state in TERMINAL])
    return jobs


def submit_once(
    session: Session, spec: JobSpec, once: Once, *, tenant_id: UUID, fallback: Capacity
) -> tuple[Job, bool]:
    """The job of this idempotency key, and whether an earlier request made it.

    Raises:
        IdempotencyConflictError: the key was used with another body.
    """
    oldest = database_now(session) - once.valid_for
    earlier = session.get(IdempotencyKey, (tenant_id, once.key))
    if earlier is not None and earlier.created_at >= oldest:
        return _replay(session, earlier, once), True
    savepoint = session.begin_nested()
    (job,) = submit(session, [spec], tenant_id=tenant_id, fallback=fallback)
    if _take_key(session, job, once, oldest=oldest):
        savepoint.commit()
        return job, False
    savepoint.rollback()  # a concurrent request with this key committed first
    session.expire_all()
    return _replay(session, session.get_one(IdempotencyKey, (tenant_id, once.key)), once), True


def prepare_next(session: Session, counter: Counter, *, fallback: Capacity) -> Job | None:
    """One job whose prompt was uncounted is queued, or failed; None: none waits.

    It fails when it never fits, or when its prompt cannot be rendered for this model.

    The row is locked while its text is counted, so two workers never count one prompt. That takes a second at
    most for what fits an engine, and half a minute on a busy machine for the largest body.
    """
    for_now = func.set_config("idle_in_transaction_session_timeout", _MAX_COUNTING, True)
    session.execute(select(for_now))
    job = session.scalar(
        select(Job)
        .where(Job.state == literal_column("'preparing'"), Job.lease_id.is_(None))
        .order_by(Job.id)
        .limit(1)
        .with_for_update(skip_locked=True)
    )
    if job is None:
        return None
    try:
        counted = texts.counted(session, texts.load(session, job.text_id), counter)
    except SQLAlchemyError:
        raise
    except Exception as error:  # noqa: BLE001  # whatever is wrong with one prompt must not stop all others
        _refuse(job, error, now=database_now(session))
        session.flush()
        events.append(session, [job])
        return job
    limits = engines.registered_capacities(session).get(job.model) or [fallback]
    _settle_count(job, num_tokens=counted.num_tokens, limits=limits, now=database_now(session))
    session.flush()
    if job.state in TERMINAL:
        events.append(session, [job])
    return job


def reject_misfits(session: Session, *, limit: int = 1000) -> list[Job]:
    """Queued jobs that no registered engine can ever run have failed (engines can come back smaller)."""
    rejected: list[Job] = []
    for model, capacities in engines.registered_capacities(session).items():
        total = Job.prompt_tokens + Job.max_tokens
        fits_none = [
            or_(
                total > min(each.max_seq_len, each.max_tokens_in_pool), Job.prompt_tokens > each.max_input_len
            )
            for each in capacities
        ]
        misfits = session.scalars(
            select(Job)
            .where(
                Job.state == literal_column("'queued'"),
                Job.model == model,
                *fits_none,
            )
            .limit(limit)
            .with_for_update(skip_locked=True)
        ).all()
        now = database_now(session)
        for job in misfits:
            _settle_count(job, num_tokens=job.prompt_tokens or 0, limits=capacities, now=now)
        rejected += misfits
    session.flush()
    events.append(session, rejected)
    return rejected


def too_long_error(excess: Excess) -> JsonObject:
    """The error of a job that can never fit, with the three numbers."""
    return {
        "code": "context_length_exceeded",
        "message": (
            f"the prompt has {excess.prompt_tokens} tokens and max_tokens is {excess.max_tokens};"
            f" {excess.limit_name} is {excess.limit}"
        ),
        "details": {
            "prompt_tokens": excess.prompt_tokens,
            "max_tokens": excess.max_tokens,
            "limit": excess.limit,
            "limit_name": excess.limit_name,
        },
    }


def _new_job(spec: JobSpec, *, tenant_id: UUID, text_id: UUID, now: datetime) -> Job:
    return Job(
        id=uuid7(),
        tenant_id=tenant_id,
        text_id=text_id,
        state=JobState.PREPARING.value,
        rank=spec.rank,
        task=spec.task,
        model=spec.model,
        max_tokens=spec.max_tokens,
        completion_tokens=0,
        sampling=spec.sampling or {},
        custom_id=spec.custom_id,
        labels=spec.metadata or {},
        webhook_url=spec.webhook_url,
        attempt=0,
        num_rescues=0,
        created_at=now,
        expires_at=now + spec.window if spec.window else None,
    )


def _settle_count(job: Job, *, num_tokens: int, limits: Sequence[Capacity], now: datetime) -> None:
    """The count decides: queued, or failed when no engine can ever run it."""
    job.prompt_tokens = num_tokens
    excesses = [find_excess(limit, prompt_tokens=num_tokens, max_tokens=job.max_tokens) for limit in limits]
    if any(excess is None for excess in excesses):
        job.state = TRANSITIONS["prepare"][1].value
        return
    job.state = TRANSITIONS["reject"][1].value
    job.error = too_long_error(max((each for each in excesses if each), key=lambda excess: excess.limit))
    job.finalized_at = now


def _refuse(job: Job, error: Exception, *, now: datetime) -> None:
    """The job has failed, since nobody can count its prompt."""
    job.state = TRANSITIONS["reject"][1].value
    job.finalized_at = now
    if isinstance(error, LongbatchError):
        job.error = {"code": error.code, "message": error.message}
    else:
        job.error = {"code": "invalid_prompt", "message": "the stored prompt cannot be read"}


def _take_key(session: Session, job: Job, once: Once, *, oldest: datetime) -> bool:
    """Whether the key is now this job's; waits for a concurrent request, and replaces an old row."""
    statement = insert(IdempotencyKey).values(
        tenant_id=job.tenant_id,
        key=once.key,
        request_sha256=once.request_sha256,
        job_id=job.id,
        created_at=job.created_at,
    )
    new = statement.excluded
    taken = session.scalar(
        statement.on_conflict_do_update(
            index_elements=["tenant_id", "key"],
            set_={"request_sha256": new.request_sha256, "job_id": new.job_id, "created_at": new.created_at},
            where=IdempotencyKey.created_at < oldest,
        ).returning(IdempotencyKey.job_id)
    )
    return taken is not None


def _replay(session: Session, earlier: IdempotencyKey, once: Once) -> Job:
    if earlier.request_sha256 != once.request_sha256:
        raise IdempotencyConflictError(param="Idempotency-Key")
    return session.get_one(Job, earlier.job_id)
