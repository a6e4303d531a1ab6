"""How jobs come in: submitted, counted, and queued or refused because they can never fit."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import Text, cast, func, literal_column, or_, select, update
from sqlalchemy.exc import DBAPIError, NoResultFound
from sqlalchemy.orm import Session

from jobs import endings, engines, summary_prompts, texts
from jobs.admission import Capacity, Excess, find_excess
from jobs.database import database_now
from jobs.errors import LongbatchError
from jobs.idempotency import Kind, Once, run_once
from jobs.ids import uuid7
from jobs.models import Job, JsonObject, PromptText
from jobs.quotas import Admit, Held
from jobs.states import TERMINAL, TRANSITIONS, JobState, Lane
from jobs.texts import CountedPrompt, Counter, NewText

# Far above what counting takes; a worker that is frozen meanwhile keeps its job for so long.
_MAX_COUNTING = "5min"
# Jobs that are looked through for one that nobody counts: more than there will be service workers.
_MAX_COUNTERS = 64
_COUNTING_LOCK = 0x10C0  # the first half of our advisory locks' keys
_PUT_OFF = timedelta(minutes=1)
# What a chat template adds around a message, far above what any does.
_TEMPLATE_TOKENS = 256

# A stored prompt or, in a tree, one that was written just now; with its ids. Or what is wrong with it.
_Count = tuple[PromptText | NewText, CountedPrompt] | BaseException


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What a caller asks for, validated.

    Attributes:
        text: the prompt; with its ids when it was small enough to count at once.
        rank: -1 low, 0 normal, 1 high.
        lane: who waits for it.
        window: it expires this long after it was accepted; None: never, unless `expires_at` says when.
        batch_id: of the batch that it is line `batch_line` of.
        sampling: temperature, top_p, top_k, seed, stop as given.
    """

    text: NewText
    task: str
    model: str
    max_tokens: int
    rank: int = 0
    lane: Lane = Lane.BATCH
    sampling: JsonObject | None = None
    custom_id: str | None = None
    metadata: JsonObject | None = None
    webhook_url: str | None = None
    webhook_secret: bytes | None = None
    webhook_includes_output: bool = False
    window: timedelta | None = None
    expires_at: datetime | None = None
    batch_id: UUID | None = None
    batch_line: int | None = None


def submit(
    session: Session,
    specs: Sequence[JobSpec],
    *,
    tenant_id: UUID,
    fallback: Capacity,
    admit: Admit | None = None,
) -> list[Job]:
    """The jobs stand in the table, in the given order: queued, preparing, or failed if they never fit.

    Args:
        session: the caller's transaction.
        specs: at most a few thousand; callers with more send them in parts.
        tenant_id: whose jobs they are.
        fallback: the limits while no engine has registered yet.
        admit: asked for what the jobs take of the tenant's quota; None: it is not limited.

    Raises:
        LimitError: `admit` says no; the caller's transaction must not be committed.
    """
    text_ids = texts.store(session, [spec.text for spec in specs], tenant_id=tenant_id)
    now, capacities = engines.look(session)
    jobs = [
        _new_job(spec, tenant_id=tenant_id, text_id=text_ids[spec.text.sha256], now=now) for spec in specs
    ]
    for job, spec in zip(jobs, specs, strict=True):
        limits = capacities.get(job.model) or [fallback]
        if spec.text.counted:
            _settle_count(job, num_tokens=spec.text.counted.num_tokens, limits=limits, now=now)
        else:
            job.reserved_tokens = demand(spec, limits)
    taken = [job.reserved_tokens for job in jobs if job.state not in TERMINAL]
    if admit is not None and taken:
        admit(session, Held(tokens=sum(taken), jobs=len(taken)))
    session.add_all(jobs)
    session.flush()
    endings.note(session, [job for job in jobs if job.state in TERMINAL])
    return jobs


def demand(spec: JobSpec, limits: Sequence[Capacity]) -> int:
    """Tokens that the job takes of its tenant's quota: max_tokens, and its prompt or a bound of it.

    A prompt that is not counted yet has no more tokens than bytes, and none stays that no engine takes.
    """
    if spec.text.counted:
        return spec.text.counted.num_tokens + spec.max_tokens
    longest = max(limit.max_input_len for limit in limits)
    return min(spec.text.num_bytes + _TEMPLATE_TOKENS, longest) + spec.max_tokens


def submit_once(
    session: Session,
    spec: JobSpec,
    once: Once,
    *,
    tenant_id: UUID,
    fallback: Capacity,
    admit: Admit | None = None,
) -> tuple[Job, bool]:
    """The job of this idempotency key, and whether an earlier request made it.

    Raises:
        IdempotencyConflictError: the key was used with another body.
        LimitError: as `submit`.
    """

    def make(session: Session) -> Job:
        (job,) = submit(session, [spec], tenant_id=tenant_id, fallback=fallback, admit=admit)
        return job

    return run_once(session, once, make, tenant_id=tenant_id, kind=_ONE_JOB)


def submit_part_once(
    session: Session,
    specs: Sequence[JobSpec],
    once: Once,
    *,
    tenant_id: UUID,
    fallback: Capacity,
    admit: Admit | None = None,
) -> tuple[list[UUID], list[Job]]:
    """The ids of this key's jobs in the order of `specs`, and those of them that are new: all or none.

    Raises:
        IdempotencyConflictError: the key was used for other jobs.
        LimitError: as `submit`.
    """
    new: list[Job] = []

    def make(session: Session) -> list[UUID]:
        new.extend(submit(session, specs, tenant_id=tenant_id, fallback=fallback, admit=admit))
        return [job.id for job in new]

    job_ids, _ = run_once(session, once, make, tenant_id=tenant_id, kind=_SOME_JOBS)
    return job_ids, new


def prepare_next(session: Session, counter: Counter, *, fallback: Capacity) -> Job | None:
    """One job whose prompt was uncounted is queued, or failed, or put off; None: none waits.

    It fails when it never fits, or when its prompt cannot be rendered for this model. It is put off for a
    while when the database refuses what is written for it.

    An advisory lock sees to it that two workers never count one prompt. The row stays free meanwhile, since
    that can take long (a second at most for what fits an engine, half a minute on a busy machine for the
    largest body): whoever cancels the job does not wait, and its count is dropped.
    """
    for_now = func.set_config("idle_in_transaction_session_timeout", _MAX_COUNTING, True)
    session.execute(select(for_now))
    while (waiting := _next_uncounted(session)) is not None:
        found = _count(session, waiting, counter)
        still = select(Job).where(Job.id == waiting.id, Job.state == JobState.PREPARING).with_for_update()
        job = session.scalar(still.execution_options(populate_existing=True))
        if job is not None:
            _prepare(session, job, found, fallback=fallback)
            return job
    return None


def _next_uncounted(session: Session) -> Job | None:
    """The oldest job that nobody else counts; nobody else will while this transaction is open."""
    due = or_(Job.run_after.is_(None), Job.run_after <= func.clock_timestamp())
    preparing = (
        select(Job)
        .where(Job.state == literal_column("'preparing'"), Job.lease_id.is_(None), due)
        .order_by(Job.id)
        .execution_options(populate_existing=True)
    )
    for job_id in session.scalars(preparing.with_only_columns(Job.id).limit(_MAX_COUNTERS)).all():
        lock = func.pg_try_advisory_xact_lock(_COUNTING_LOCK, func.hashtext(cast(job_id, Text)))
        # Read again under the lock: its last holder may just have counted it.
        if session.scalar(select(lock)) and (job := session.scalar(preparing.where(Job.id == job_id))):
            return job
    return None


def _count(session: Session, job: Job, counter: Counter) -> _Count:
    """The prompt and its ids, or what is wrong with it, which must not stop all other prompts."""
    try:
        if job.text_id is None:
            canonical = summary_prompts.write(session, job)
        else:
            text = texts.load(session, job.text_id)
    except (NoResultFound, LongbatchError) as error:
        return error
    try:
        if job.text_id is None:
            counted = counter.count_prompt(canonical)
            return NewText(canonical, counted), counted
        return text, texts.count(text, counter)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:  # noqa: BLE001  # see above; a tokenizer's panic is no Exception
        return error


def _prepare(
    session: Session,
    job: Job,
    found: _Count,
    *,
    fallback: Capacity,
) -> None:
    """The job is queued, failed or put off."""
    job_id = job.id
    try:
        with session.begin_nested():
            now = database_now(session)
            job.run_after = None
            if isinstance(found, BaseException):
                _refuse(job, found, now=now)
            else:
                text, counted = found
                if isinstance(text, NewText):
                    job.text_id = texts.store(session, [text], tenant_id=job.tenant_id)[text.sha256]
                else:
                    texts.keep_count(session, text, counted)
                limits = engines.registered_capacities(session).get(job.model) or [fallback]
                _settle_count(job, num_tokens=counted.num_tokens, limits=limits, now=now)
            session.flush()
            if job.state in TERMINAL:
                endings.note(session, [job])
    except DBAPIError as error:
        if error.connection_invalidated:
            raise
        later = func.clock_timestamp() + _PUT_OFF
        session.execute(update(Job).where(Job.id == job_id).values(run_after=later))
        session.refresh(job)


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
    endings.note(session, rejected)
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
        lane=spec.lane.value,
        rank=spec.rank,
        task=spec.task,
        model=spec.model,
        max_tokens=spec.max_tokens,
        completion_tokens=0,
        sampling=spec.sampling or {},
        custom_id=spec.custom_id,
        labels=spec.metadata or {},
        webhook_url=spec.webhook_url,
        webhook_secret=spec.webhook_secret,
        webhook_includes_output=spec.webhook_includes_output,
        attempt=0,
        num_rescues=0,
        num_yields=0,
        num_preemptions=0,
        created_at=now,
        expires_at=now + spec.window if spec.window else spec.expires_at,
        batch_id=spec.batch_id,
        batch_line=spec.batch_line,
        is_reported=False,
    )


def _settle_count(job: Job, *, num_tokens: int, limits: Sequence[Capacity], now: datetime) -> None:
    """The count decides: queued, or failed when no engine can ever run it."""
    job.prompt_tokens = num_tokens
    job.reserved_tokens = num_tokens + job.max_tokens
    excesses = [find_excess(limit, prompt_tokens=num_tokens, max_tokens=job.max_tokens) for limit in limits]
    if any(excess is None for excess in excesses):
        job.state = TRANSITIONS["prepare"][1].value
        return
    job.state = TRANSITIONS["reject"][1].value
    job.error = too_long_error(max((each for each in excesses if each), key=lambda excess: excess.limit))
    job.finalized_at = now


def _refuse(job: Job, error: BaseException, *, now: datetime) -> None:
    """The job has failed, since nobody can count its prompt."""
    job.state = TRANSITIONS["reject"][1].value
    job.finalized_at = now
    if isinstance(error, LongbatchError):
        job.error = {"code": error.code, "message": error.message}
    else:
        job.error = {"code": "invalid_prompt", "message": "the stored prompt cannot be read"}


def _find_job(session: Session, noted: UUID | JsonObject) -> Job | None:
    return session.get(Job, noted)


def _find_ids(_session: Session, noted: UUID | JsonObject) -> list[UUID] | None:
    """Jobs that were deleted since are named too: a part is never made anew in pieces."""
    ids = noted.get("job_ids") if isinstance(noted, dict) else None
    return [UUID(hex=each) for each in ids] if isinstance(ids, list) else None


def _note_ids(job_ids: list[UUID]) -> JsonObject:
    return {"job_ids": [each.hex for each in job_ids]}


_ONE_JOB: Kind[Job] = Kind("job", note=lambda job: job.id, find=_find_job)
_SOME_JOBS: Kind[list[UUID]] = Kind("jobs", note=_note_ids, find=_find_ids)
