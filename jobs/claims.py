"""The claim: one transaction that books slots and blocks and puts a job under a lease."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from jobs import accounts, lifecycle, loads, queue_window, reservations
from jobs.bookings import Bookkeeper, Terms
from jobs.database import database_now
from jobs.ids import uuid7
from jobs.lifecycle import Lease
from jobs.loads import Load
from jobs.models import Engine, Job, Reservation
from jobs.packing import Candidate, Choice, choose
from jobs.preemption import make_room
from jobs.ranking import Ranked, Ranking, charged
from jobs.segments import extend_or_yield
from jobs.states import Lane


@dataclass(frozen=True, slots=True)
class Claim:
    """A job that is ours to run.

    Attributes:
        lease: the fence for every later write.
        blocks: KV blocks booked for it.
        output_tokens: that the blocks cover beside the prompt, those of earlier runs included.
        job: its row at the claim; not tracked by any session.
        free_slots: that the engine has left.
    """

    lease: Lease
    blocks: int
    output_tokens: int
    job: Job
    free_slots: int


@dataclass(frozen=True, slots=True)
class MakingRoom:
    """Nothing may start now, but batch jobs were asked to leave for an interactive one."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A job whose request the engine has confirmed to be over; its end is not recorded yet.

    Attributes:
        lease_id: whose booking goes.
        produced: tokens that it has generated in all.
    """

    lease_id: UUID
    produced: int


@dataclass(frozen=True, slots=True)
class Foreseen:
    """What `foresee` found a moment ago.

    Attributes:
        candidates: the head of the queue.
        text_ids: the prompts of jobs that would start next: now, or when one of the running jobs ends.
    """

    candidates: Sequence[Ranked] = ()
    text_ids: Sequence[UUID] = ()


def claim(
    session: Session,
    engine_name: str,
    terms: Terms,
    *,
    ended: Ended | None = None,
    foreseen: Foreseen | None = None,
) -> Claim | MakingRoom | None:
    """The next job for this engine is running, its blocks booked; None: nothing may start now.

    Args:
        session: the caller's transaction.
        engine_name: where it is to run.
        terms: of the claim.
        ended: a job whose booking is closed first.
        foreseen: candidates that were read a moment ago, so that the queue need not be read again; it is
            when none of them may start.
    """
    locked = loads.lock(session, engine_name)
    if ended is not None:  # behind the lock: accounts come after engines, here as everywhere
        reservations.close(session, ended.lease_id, produced=ended.produced)
    if locked is None or locked[0].paused_reason is not None:
        return None
    engine, now = locked
    load = loads.read(session, engine)
    if load.budget.free_slots < 1 and not queue_window.has_interactive(session, engine.model):
        return None
    if foreseen is not None:
        claimed, _ = _start_one(session, engine_name, list(foreseen.candidates), load, terms)
        if claimed is not None:
            return claimed
    books = Bookkeeper(session, load.capacity, terms)
    candidates = Ranking(session, engine.model, load.capacity, terms, books, now).head()
    claimed, left = _start_one(session, engine_name, candidates, load, terms)
    if claimed is None and left and _ask_for_room(session, left, load, terms):
        return MakingRoom()
    return claimed


def foresee(session: Session, engine_name: str, terms: Terms) -> Foreseen:
    """What the next claims on this engine will choose from, and probably choose. Locks nothing."""
    engine = session.scalar(select(Engine).where(Engine.name == engine_name))
    if engine is None:
        return Foreseen()
    load = loads.read(session, engine)
    books = Bookkeeper(session, load.capacity, terms)
    now = database_now(session)
    ranking = Ranking(session, engine.model, load.capacity, terms, books, now, takes_up=False)
    candidates = ranking.head()
    found: dict[UUID, None] = {}  # in order, each once
    for ended in (None, *load.running):
        choice = _choose(candidates, load if ended is None else _without(load, ended), terms)
        found.update({each.job.text_id: None for each in candidates if each.job.id == choice.start})
    return Foreseen(candidates, list(found))


def _start_one(
    session: Session, engine_name: str, candidates: list[Ranked], load: Load, terms: Terms
) -> tuple[Claim | None, list[Ranked]]:
    """The chosen one of them runs; None: none may. And those that are still there."""
    while candidates:
        choice = _choose(candidates, load, terms)
        if choice.start is None:
            break
        chosen = next(each for each in candidates if each.job.id == choice.start)
        claimed = _book(session, engine_name, chosen, choice, load, terms)
        candidates.remove(chosen)
        if claimed is not None:
            return claimed, candidates
        # Another engine was faster, or it was recounted.
    return None, candidates


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
    locked = loads.lock(session, engine_name)
    held = select(Job).where(Job.id == lease.job_id, Job.lease_id == lease.lease_id, Job.state == "running")
    job = session.scalar(held)
    mine = session.get(Reservation, lease.lease_id, populate_existing=True)
    if locked is None or job is None or mine is None:
        return None
    load = loads.read(session, locked[0])
    books = Bookkeeper(session, load.capacity, terms)
    wanted = books.booking(job, produced=produced)
    extension = extend_or_yield(
        replace(
            load.running[lease.lease_id],
            steps_left=0,
            recompute_tokens=(job.prompt_tokens or 0) + produced,
        ),
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
    granted = min(job.max_tokens, room)
    accounts.charge(session, job.tenant_id, job.model, granted - mine.output_tokens)
    mine.output_tokens = granted
    return granted


def _overtaken(session: Session, mine: Reservation, books: Bookkeeper, terms: Terms) -> Candidate | None:
    """The job that this one started ahead of, if it still waits."""
    if mine.overtakes is None:
        return None
    waiting = session.scalar(select(Job).where(Job.id == mine.overtakes, Job.state == "queued"))
    if waiting is None:
        return None
    booking = books.booking(waiting, produced=waiting.completion_tokens)
    return Candidate(
        waiting.id, booking.blocks, booking.steps, alone=waiting.num_rescues >= terms.max_rescues
    )


def _choose(candidates: Sequence[Ranked], load: Load, terms: Terms) -> Choice:
    return choose(
        [each.candidate for each in candidates],
        list(load.running.values()),
        load.budget,
        max_batch_size=load.capacity.max_batch_size,
        rules=terms.packing,
    )


def _without(load: Load, lease_id: UUID) -> Load:
    """The engine once this job has ended."""
    rest = {each: running for each, running in load.running.items() if each != lease_id}
    budget = replace(
        load.budget,
        free_slots=load.budget.free_slots + 1,
        free_blocks=load.budget.free_blocks + load.running[lease_id].blocks,
        idle=not rest,
    )
    return replace(load, running=rest, budget=budget)


def _ask_for_room(session: Session, candidates: Sequence[Ranked], load: Load, terms: Terms) -> bool:
    """Whether batch jobs were asked to leave for the first interactive one."""
    if candidates[0].candidate.lane is not Lane.INTERACTIVE:
        return False
    leaving = make_room(
        candidates[0].candidate,
        list(load.running.values()),
        load.budget,
        max_batch_size=load.capacity.max_batch_size,
        rules=terms.packing,
        batch_waits=any(each.candidate.lane is Lane.BATCH for each in candidates),
    )
    return bool(leaving) and lifecycle.ask_to_make_room(session, leaving) > 0


def _book(
    session: Session, engine_name: str, chosen: Ranked, choice: Choice, load: Load, terms: Terms
) -> Claim | None:
    seen, booking = chosen.job, chosen.booking
    lease = Lease(seen.id, uuid7())
    job = lifecycle.start(
        session,
        lease,
        prompt_tokens=seen.prompt_tokens,
        completion_tokens=seen.completion_tokens,
        lasting=terms.lease,
        engine_name=engine_name,
    )
    if job is None:
        return None
    session.execute(
        insert(Reservation).values(
            lease_id=lease.lease_id,
            engine_name=engine_name,
            job_id=job.id,
            blocks=booking.blocks,
            output_tokens=booking.output_tokens,
            output_before=job.completion_tokens,
            overtakes=choice.overtakes,
            alone=chosen.candidate.alone,
        )
    )
    accounts.charge(session, job.tenant_id, job.model, charged(seen, booking))
    return Claim(
        lease=lease,
        blocks=booking.blocks,
        output_tokens=booking.output_tokens,
        job=job,
        free_slots=load.budget.free_slots - 1,
    )
