"""The claim: one transaction that books slots and blocks and puts a job under a lease."""

from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from sqlalchemy import Select, literal_column, or_, select
from sqlalchemy.orm import Session

from jobs import engines, lifecycle
from jobs.admission import Budget, Capacity, Held, free_budget
from jobs.bookings import Booking, Bookkeeper, Terms, steps
from jobs.database import database_now
from jobs.ids import uuid7
from jobs.lifecycle import Lease
from jobs.models import Engine, Job, Reservation
from jobs.packing import Candidate, Choice, Running, choose
from jobs.segments import extend_or_yield

# Enough of the queue's head to choose from; beyond it, only jobs that fit right now are looked at.
WINDOW = 32


@dataclass(frozen=True, slots=True)
class Claim:
    """A job that is ours to run.

    Attributes:
        lease: the fence for every later write.
        blocks: KV blocks booked for it.
        output_tokens: that the blocks cover beside the prompt, those of earlier runs included.
        job: its row at the claim; not tracked by any session.
    """

    lease: Lease
    blocks: int
    output_tokens: int
    job: Job


def claim(session: Session, engine_name: str, terms: Terms) -> Claim | None:
    """The next job for this engine is running, its blocks booked; None: nothing may start now.

    The engine's row lock serializes all claims on it; the sum of its reservations is read by a second
    statement, whose snapshot is younger than the lock and so sees every booking made before.
    """
    engine = session.scalar(select(Engine).where(Engine.name == engine_name).with_for_update())
    if engine is None or engine.paused_reason is not None:
        return None
    load = _load(session, engine)
    if load.budget.free_slots < 1:
        return None
    books = Bookkeeper(session, load.capacity, terms.foresight)
    now = database_now(session)
    rows = {job.id: job for job in _window(session, engine.model, load, now=now)}
    bookings = {job.id: books.booking(job, produced=job.completion_tokens) for job in rows.values()}
    while rows:
        candidates = [_candidate(job, bookings[job.id], terms, now=now) for job in rows.values()]
        choice = choose(
            candidates,
            list(load.running.values()),
            load.budget,
            max_batch_size=load.capacity.max_batch_size,
            rules=terms.packing,
        )
        if choice.start is None:
            return None
        claimed = _book(session, engine_name, rows[choice.start], choice, bookings[choice.start], terms)
        if claimed is not None:
            return claimed
        del rows[choice.start]  # another engine was faster, or it was recounted
    return None


@dataclass(frozen=True, slots=True)
class Waiting:
    """No block is free; others will end and leave theirs. The job keeps its booking and asks again."""


@dataclass(frozen=True, slots=True)
class Yielding:
    """The job goes back to the queue: nobody could go on, or a job that it overtook would wait for it."""


def extend(
    session: Session, engine_name: str, lease: Lease, *, produced: int, terms: Terms
) -> int | Waiting | Yielding | None:
    """A job at the end of its booking may generate so many tokens in all now, or has to wait or to yield.

    Args:
        session: the caller's transaction.
        engine_name: where it runs.
        lease: its fence; None is returned when it is lost.
        produced: tokens it has generated.
        terms: as at its claim.
    """
    engine = session.scalar(select(Engine).where(Engine.name == engine_name).with_for_update())
    held = select(Job).where(Job.id == lease.job_id, Job.lease_id == lease.lease_id, Job.state == "running")
    job = session.scalar(held)
    mine = session.get(Reservation, lease.lease_id, populate_existing=True)
    if engine is None or job is None or mine is None:
        return None
    load = _load(session, engine)
    books = Bookkeeper(session, load.capacity, terms.foresight)
    wanted = books.booking(job, produced=produced)
    extension = extend_or_yield(
        replace(_running(mine, job, produced=produced), recompute_tokens=(job.prompt_tokens or 0) + produced),
        [each for lease_id, each in load.running.items() if lease_id != lease.lease_id],
        load.budget,
        wanted_blocks=max(1, wanted.blocks - mine.blocks),
        overtaken=_overtaken(session, mine, books, terms),
    )
    if extension.yields == job.id:
        return Yielding()
    mine.is_waiting = extension.blocks == 0
    if mine.is_waiting:
        return Waiting()
    mine.blocks += extension.blocks
    room = mine.blocks * load.capacity.tokens_per_block - (job.prompt_tokens or 0)
    mine.output_tokens = min(job.max_tokens, room)
    return mine.output_tokens


def _overtaken(session: Session, mine: Reservation, books: Bookkeeper, terms: Terms) -> Candidate | None:
    """The job that this one started ahead of, if it still waits."""
    if mine.overtakes is None:
        return None
    waiting = session.scalar(select(Job).where(Job.id == mine.overtakes, Job.state == "queued"))
    if waiting is None:
        return None
    booking = books.booking(waiting, produced=waiting.completion_tokens)
    return _candidate(waiting, booking, terms, now=database_now(session))


@dataclass(frozen=True, slots=True)
class _Load:
    """An engine with what is booked on it, by lease."""

    capacity: Capacity
    running: dict[UUID, Running]
    budget: Budget


def _load(session: Session, engine: Engine) -> _Load:
    rows = session.execute(
        select(Reservation, Job)
        .outerjoin(Job, (Job.id == Reservation.job_id) & (Job.lease_id == Reservation.lease_id))
        .where(Reservation.engine_name == engine.name)
        .execution_options(populate_existing=True)
    ).all()
    capacity = engines.capacity_of(engine)
    held = [Held(blocks=booked.blocks, alone=booked.alone) for booked, _ in rows]
    return _Load(
        capacity=capacity,
        running={
            booked.lease_id: _running(booked, job, produced=job.completion_tokens if job else 0)
            for booked, job in rows
        },
        budget=free_budget(capacity, held, spare_blocks=engine.spare_blocks),
    )


def _running(booked: Reservation, job: Job | None, *, produced: int) -> Running:
    """The booking as the packing sees it; what drains belongs to nobody and ends soon."""
    if job is None:
        return Running(booked.job_id, booked.blocks, steps_left=0)
    prompt_tokens = 0 if job.first_token_at else job.prompt_tokens or 0
    return Running(
        job_id=job.id,
        blocks=booked.blocks,
        steps_left=steps(prompt_tokens, max(0, booked.output_tokens - produced)),
        recompute_tokens=None if job.num_yields else (job.prompt_tokens or 0) + produced,
        is_going=not booked.is_waiting,
    )


def _window(session: Session, model: str, load: _Load, *, now: datetime) -> list[Job]:
    """The head of the queue, then the first jobs that may fit right now however far behind they stand."""
    capacity = load.capacity
    fitting_tokens = load.budget.free_blocks * capacity.tokens_per_block
    possible = _runnable(model, now).where(
        Job.prompt_tokens + Job.max_tokens <= min(capacity.max_seq_len, capacity.max_tokens_in_pool),
        Job.prompt_tokens <= capacity.max_input_len,
    )
    head = session.scalars(possible.limit(WINDOW)).all()
    # A booking is never smaller than this.
    smallest = Job.prompt_tokens + Job.completion_tokens + 1
    fitting = session.scalars(possible.where(smallest <= fitting_tokens).limit(WINDOW)).all()
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


def _candidate(job: Job, booking: Booking, terms: Terms, *, now: datetime) -> Candidate:
    return Candidate(
        job_id=job.id,
        blocks=booking.blocks,
        steps=booking.steps,
        group=(job.tenant_id, job.rank),
        waited=now - job.created_at,
        alone=job.num_rescues >= terms.max_rescues,
    )


def _book(
    session: Session, engine_name: str, seen: Job, choice: Choice, booking: Booking, terms: Terms
) -> Claim | None:
    lease = Lease(seen.id, uuid7())
    job = lifecycle.start(session, seen, lease_id=lease.lease_id, lease=terms.lease, engine_name=engine_name)
    if job is None:
        return None
    session.add(
        Reservation(
            lease_id=lease.lease_id,
            engine_name=engine_name,
            job_id=job.id,
            blocks=booking.blocks,
            output_tokens=booking.output_tokens,
            overtakes=choice.overtakes,
            alone=job.num_rescues >= terms.max_rescues,
        )
    )
    session.flush()
    return Claim(lease=lease, blocks=booking.blocks, output_tokens=booking.output_tokens, job=job)
