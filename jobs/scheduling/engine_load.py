"""An engine with its reservations, as the packing sees it."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from sqlalchemy import bindparam, func, select
from sqlalchemy.orm import Session

from jobs.engines import registry
from jobs.engines.capacity import Budget, Capacity, ReservedBlocks, free_budget
from jobs.models import Engine, Job, Reservation
from jobs.scheduling.packing import Running
from jobs.scheduling.sizing import steps
from jobs.states import Lane, StopReason


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """One engine at one moment.

    Attributes:
        capacity: of the engine.
        running: its reservations, including draining ones, by lease.
        budget: what they leave free.
    """

    capacity: Capacity
    running: dict[UUID, Running]
    budget: Budget


def lock(session: Session, engine_name: str) -> tuple[Engine, datetime] | None:
    """Lock the engine's row and read the database's clock.

    The lock serializes all claims on the engine. Later statements read its reservations: their snapshots are
    younger than the lock and so see every reservation made before.

    Returns:
        None if the engine never registered.
    """
    found = session.execute(_LOCK, {"engine_name": engine_name}).one_or_none()
    return None if found is None else (found[0], found[1])


def read(session: Session, engine: Engine) -> EngineLoad:
    """Read what is reserved on this engine now."""
    rows = session.execute(_RESERVED, {"engine_name": engine.name}).all()
    capacity = registry.capacity_of(engine)
    held = [ReservedBlocks(blocks=row.blocks, alone=row.alone) for row in rows]
    return EngineLoad(
        capacity=capacity,
        running={row.lease_id: _running(row) for row in rows},
        budget=free_budget(capacity, held, spare_blocks=engine.spare_blocks),
    )


# Columns, not entities: a claim must be quick.
_BOOKED: Final = (
    Reservation.lease_id,
    Reservation.job_id,
    Reservation.blocks,
    Reservation.alone,
    Reservation.state,
    Reservation.output_tokens,
    Reservation.output_before,
    Reservation.is_waiting,
)
_OF_JOB: Final = (
    Job.lane,
    Job.prompt_tokens,
    Job.completion_tokens,
    Job.num_yields,
    Job.num_preemptions,
    Job.stop_reason,
)

# Built once: building a statement takes longer than Postgres does.
_LOCK: Final = (
    select(Engine, func.clock_timestamp())
    .where(Engine.name == bindparam("engine_name"))
    .with_for_update(of=Engine)
    .execution_options(populate_existing=True)
)
_RESERVED: Final = (
    select(*_BOOKED, *_OF_JOB)
    .outerjoin(Job, (Job.id == Reservation.job_id) & (Job.lease_id == Reservation.lease_id))
    .where(Reservation.engine_name == bindparam("engine_name"))
)


def _running(row: Any) -> Running:  # noqa: ANN401  # a row of these columns
    """Describe a reservation for the packing.

    A draining one has no owner and ends soon.
    """
    if row.lane is None or row.state != "held":
        return Running(row.job_id, row.blocks, steps_left=0)
    held_tokens = row.prompt_tokens + row.completion_tokens
    has_read = row.completion_tokens > row.output_before
    return Running(
        job_id=row.job_id,
        blocks=row.blocks,
        steps_left=steps(0 if has_read else held_tokens, max(0, row.output_tokens - row.completion_tokens)),
        lane=Lane(row.lane),
        recompute_tokens=None if row.num_yields else held_tokens,
        num_preemptions=row.num_preemptions,
        new_tokens=row.completion_tokens - row.output_before,
        is_going=not row.is_waiting,
        is_leaving=row.stop_reason in (StopReason.CANCEL, StopReason.EXPIRE, StopReason.PREEMPT),
    )
