"""The claim: one transaction that books slots and blocks and puts a job under a lease."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import Select, literal_column, or_, select, update
from sqlalchemy.orm import Session

from jobs import engines, lifecycle
from jobs.admission import Budget, Candidate, Capacity, Held, blocks_for, choose, find_excess, free_budget
from jobs.database import database_now
from jobs.ids import uuid7
from jobs.lifecycle import Lease
from jobs.models import Engine, Job, Reservation

# Enough of the queue's head to choose from; beyond it, only jobs that fit right now are looked at.
WINDOW = 32


@dataclass(frozen=True, slots=True)
class Terms:
    """What a worker claims under.

    Attributes:
        lease: how long without renewal until the job may be rescued.
        max_overtake: how long smaller jobs may start ahead of a head that does not fit.
        max_rescues: a job rescued so often runs alone.
    """

    lease: timedelta
    max_overtake: timedelta
    max_rescues: int


@dataclass(frozen=True, slots=True)
class Claim:
    """A job that is ours to run.

    Attributes:
        lease: the fence for every later write.
        blocks: KV blocks booked for it.
        job: its row at the claim; not tracked by any session.
    """

    lease: Lease
    blocks: int
    job: Job


def claim(session: Session, engine_name: str, terms: Terms) -> Claim | None:
    """The next job for this engine is running, its blocks booked; None: nothing may start now.

    The engine's row lock serializes all claims on it; the sum of its reservations is read by a second
    statement, whose snapshot is younger than the lock and so sees every booking made before.
    """
    engine = session.scalar(select(Engine).where(Engine.name == engine_name).with_for_update())
    if engine is None or engine.paused_reason is not None:
        return None
    capacity = engines.capacity_of(engine)
    budget = free_budget(capacity, _held(session, engine_name), spare_blocks=engine.spare_blocks)
    if budget.free_slots < 1:
        return None
    now = database_now(session)
    rows = _window(session, engine.model, capacity, budget, now=now)
    while rows:
        candidates = [_candidate(job, capacity, terms, now=now) for job in rows]
        choice = choose(candidates, budget, max_overtake=terms.max_overtake)
        if choice.start is None:
            return None
        claimed = _book(session, engine_name, choice.start, capacity, terms)
        if claimed is not None:
            _note_passed_over(session, choice.passed_over, now=now)
            return claimed
        rows = [job for job in rows if job.id != choice.start]  # another engine was faster
    return None


def _held(session: Session, engine_name: str) -> list[Held]:
    rows = session.execute(
        select(Reservation.blocks, Reservation.alone).where(Reservation.engine_name == engine_name)
    )
    return [Held(blocks=blocks, alone=alone) for blocks, alone in rows]


def _window(session: Session, model: str, capacity: Capacity, budget: Budget, *, now: datetime) -> list[Job]:
    """The head of the queue, then the first jobs that fit right now however far behind they stand."""
    fitting_tokens = budget.free_blocks * capacity.tokens_per_block
    total = Job.prompt_tokens + Job.max_tokens
    possible = _runnable(model, now).where(
        total <= min(capacity.max_seq_len, capacity.max_tokens_in_pool),
        Job.prompt_tokens <= capacity.max_input_len,
    )
    head = session.scalars(possible.limit(WINDOW)).all()
    fitting = session.scalars(possible.where(total <= fitting_tokens).limit(WINDOW)).all()
    seen_ids = {job.id for job in head}
    return [*head, *(job for job in fitting if job.id not in seen_ids)]


def _runnable(model: str, now: datetime) -> Select[Job]:
    """Queued jobs in rank order. The literal state lets the planner use the partial index."""
    return (
        select(Job)
        .where(
            Job.state == literal_column("'queued'"),
            Job.model == model,
            or_(Job.run_after.is_(None), Job.run_after <= now),
        )
        .order_by(Job.rank.desc(), Job.id)
    )


def _candidate(job: Job, capacity: Capacity, terms: Terms, *, now: datetime) -> Candidate:
    return Candidate(
        job_id=job.id,
        blocks=_blocks(job, capacity),
        passed_over_for=now - job.passed_over_at if job.passed_over_at else None,
        alone=job.num_rescues >= terms.max_rescues,
    )


def _blocks(job: Job, capacity: Capacity) -> int:
    return blocks_for((job.prompt_tokens or 0) + job.max_tokens, capacity.tokens_per_block)


def _book(session: Session, engine_name: str, job_id: UUID, capacity: Capacity, terms: Terms) -> Claim | None:
    lease = Lease(job_id, uuid7())
    job = lifecycle.start(
        session, job_id, lease_id=lease.lease_id, lease=terms.lease, engine_name=engine_name
    )
    if job is None:
        return None
    assert find_excess(capacity, prompt_tokens=job.prompt_tokens or 0, max_tokens=job.max_tokens) is None  # noqa: S101  # the window's WHERE says so; a wrong booking must not reach the engine
    blocks = _blocks(job, capacity)
    session.add(
        Reservation(
            lease_id=lease.lease_id,
            engine_name=engine_name,
            job_id=job_id,
            blocks=blocks,
            alone=job.num_rescues >= terms.max_rescues,
        )
    )
    session.flush()
    return Claim(lease=lease, blocks=blocks, job=job)


def _note_passed_over(session: Session, job_id: UUID | None, *, now: datetime) -> None:
    """The overtaken head knows since when; at the next claim, if somebody is changing it just now.

    To wait for its row here, with the engine's and another job's locked, could be a deadlock.
    """
    head = select(Job.id).where(Job.id == job_id, Job.passed_over_at.is_(None))
    if job_id is not None and session.scalar(head.with_for_update(skip_locked=True)) is not None:
        session.execute(update(Job).where(Job.id == job_id).values(passed_over_at=now))
