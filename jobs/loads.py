"""An engine with what is booked on it, as the packing sees it."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from jobs import engines
from jobs.admission import Budget, Capacity, Held, free_budget
from jobs.bookings import steps
from jobs.database import database_now
from jobs.models import Engine, Job, Reservation
from jobs.packing import Running
from jobs.states import Lane, StopReason


@dataclass(frozen=True, slots=True)
class Load:
    """One engine at one moment.

    Attributes:
        capacity: of the engine.
        running: its reservations, draining ones included, by lease.
        budget: what they leave free.
    """

    capacity: Capacity
    running: dict[UUID, Running]
    budget: Budget


def lock(session: Session, engine_name: str) -> tuple[Engine, datetime] | None:
    """The engine's row, locked, and the database's clock; None: it never registered.

    The lock serializes all claims on the engine. What is booked is read by later statements, whose snapshots
    are younger than the lock and so see every booking made before.
    """
    engine = session.scalar(
        select(Engine)
        .where(Engine.name == engine_name)
        .with_for_update()
        .execution_options(populate_existing=True)
    )
    return None if engine is None else (engine, database_now(session))


def read(session: Session, engine: Engine) -> Load:
    """What is booked on this engine now."""
    rows = session.execute(
        select(Reservation, Job)
        .outerjoin(Job, (Job.id == Reservation.job_id) & (Job.lease_id == Reservation.lease_id))
        .where(Reservation.engine_name == engine.name)
        .execution_options(populate_existing=True)
    ).all()
    capacity = engines.capacity_of(engine)
    held = [Held(blocks=booked.blocks, alone=booked.alone) for booked, _ in rows]
    return Load(
        capacity=capacity,
        running={
            booked.lease_id: as_running(booked, job, produced=job.completion_tokens if job else 0)
            for booked, job in rows
        },
        budget=free_budget(capacity, held, spare_blocks=engine.spare_blocks),
    )


def as_running(booked: Reservation, job: Job | None, *, produced: int) -> Running:
    """The booking as the packing sees it; what drains belongs to nobody and ends soon."""
    if job is None or booked.state != "held":
        return Running(booked.job_id, booked.blocks, steps_left=0)
    held_tokens = (job.prompt_tokens or 0) + produced
    has_read = produced > booked.output_before
    return Running(
        job_id=job.id,
        blocks=booked.blocks,
        steps_left=steps(0 if has_read else held_tokens, max(0, booked.output_tokens - produced)),
        lane=Lane(job.lane),
        recompute_tokens=None if job.num_yields else held_tokens,
        num_preemptions=job.num_preemptions,
        new_tokens=produced - booked.output_before,
        is_going=not booked.is_waiting,
        is_leaving=job.stop_reason in (StopReason.CANCEL, StopReason.EXPIRE, StopReason.PREEMPT),
    )
