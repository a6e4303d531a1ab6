"""An engine with its reservations, as the packing sees it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from sqlalchemy.orm import Session

from jobs.database import statements
from jobs.database.statements import Statement
from jobs.engines import registry
from jobs.engines.capacity import Budget, Capacity, ReservedBlocks, free_budget
from jobs.engines.registry import EngineRow
from jobs.models import Engine, Job, Reservation
from jobs.models.tenant import HALTED_TENANTS
from jobs.scheduling.packing import Family, Reserved, with_slot_waits
from jobs.scheduling.sizing import steps
from jobs.states import Lane, StopReason


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """One engine at one moment.

    Attributes:
        capacity: of the engine.
        reserved: its reservations, including draining ones, by lease.
        budget: what they leave free.
        interactive_waits: an interactive job of its model is queued, and its tenant's queue is not halted.
    """

    capacity: Capacity
    reserved: dict[UUID, Reserved]
    budget: Budget
    interactive_waits: bool = False


def lock(session: Session, engine_name: str) -> tuple[EngineRow, datetime] | None:
    """Lock the engine's row and read the database's clock.

    The lock serializes all claims on the engine. Later statements read its reservations: their snapshots are
    younger than the lock and so see every reservation made before.

    Returns:
        None if the engine never registered.
    """
    found = statements.fetch(session, _LOCK, {"engine_name": engine_name})
    return (EngineRow(*found[0][:-1]), found[0][-1]) if found else None


def read(session: Session, engine: Engine | EngineRow) -> EngineLoad:
    """Read what is reserved on this engine now."""
    found = statements.fetch(session, _RESERVED, {"engine_name": engine.name})
    rows = [_Row(*row[1:]) for row in found if row[1] is not None]
    return _load_of(engine, rows, interactive_waits=found[0][0])


def of(engine: Engine, reserved: Sequence[tuple[Reservation, Job | None]]) -> EngineLoad:
    """Describe the load by reservations that are read already, each with its job if that has its lease."""
    rows = [
        _Row(
            *(getattr(reservation, name) for name in _OF_RESERVATION),
            *(getattr(job, name, None) for name in _OF_JOB),
        )
        for reservation, job in reserved
    ]
    return _load_of(engine, rows)


def _load_of(
    engine: Engine | EngineRow, rows: "Sequence[_Row]", *, interactive_waits: bool = False
) -> EngineLoad:
    capacity = registry.capacity_of(engine)
    rows = sorted(rows, key=_order_of_slots)
    reserved = _freed_by_end(rows, capacity.max_batch_size)
    held = [ReservedBlocks(blocks=reserved[row.lease_id].blocks, alone=row.alone) for row in rows]
    budget = free_budget(capacity, held, spare_blocks=engine.spare_blocks)
    # Interactive jobs must not wait behind others, and silent requests keep a drain from being proven.
    if any(row.state != "held" or row.lane == Lane.INTERACTIVE for row in rows):
        budget = budget.without_waiting_room()
    return EngineLoad(
        capacity=capacity,
        reserved=reserved,
        budget=budget,
        interactive_waits=interactive_waits,
    )


def _order_of_slots(row: "_Row") -> tuple[bool, UUID]:
    """Return a sort key: what generates or drains has a slot, the others get one in order of their claims."""
    has_slot = row.state != "held" or row.lane is None or row.completion_tokens > row.output_before
    return not has_slot, row.lease_id  # UUIDs of version 7


class _Row(NamedTuple):
    """A reservation, and its job if that still has its lease; see the tables."""

    lease_id: UUID
    job_id: UUID
    blocks: int
    alone: bool
    state: str
    output_tokens: int
    output_before: int
    is_waiting: bool
    shared_blocks: int
    lane: str | None
    prompt_tokens: int
    completion_tokens: int
    is_whole: bool
    num_yields: int
    num_preemptions: int
    stop_reason: str | None
    tenant_id: UUID | None
    text_id: UUID | None
    family: bytes | None
    rank: int | None


_FIRST_OF_JOB: Final = _Row._fields.index("lane")
_OF_RESERVATION: Final = _Row._fields[:_FIRST_OF_JOB]
_OF_JOB: Final = _Row._fields[_FIRST_OF_JOB:]
_LOCK: Final = Statement(f"""
    SELECT {", ".join(EngineRow._fields)}, clock_timestamp() FROM engines WHERE name = %(engine_name)s::text
    FOR UPDATE
    """)  # noqa: S608  # built from constants
_RESERVED: Final = Statement(f"""
    SELECT waiting.interactive,
        {", ".join(f"{'jobs' if name in _OF_JOB else 'reserved'}.{name}" for name in _Row._fields)}
    FROM (
        SELECT EXISTS (
            SELECT FROM jobs WHERE state = 'queued' AND lane = '{Lane.INTERACTIVE.value}'
                AND model = (SELECT model FROM engines WHERE name = %(engine_name)s::text)
                AND tenant_id <> ALL ({HALTED_TENANTS})
        ) AS interactive
    ) AS waiting
    LEFT JOIN reservations AS reserved ON reserved.engine_name = %(engine_name)s::text
    LEFT JOIN jobs ON jobs.id = reserved.job_id AND jobs.lease_id = reserved.lease_id
        AND jobs.id = ANY(ARRAY(SELECT job_id FROM reservations WHERE engine_name = %(engine_name)s::text))
    """)  # noqa: S608  # built from constants


def _freed_by_end(rows: Sequence[_Row], max_batch_size: int) -> dict[UUID, Reserved]:
    """Describe the reservations with the blocks that the end of each frees, in order of the rows.

    Shared blocks are freed with the last job that has them. Of a draining one nothing is known to be shared.
    """
    described = with_slot_waits([_reserved(row) for row in rows], max_batch_size)
    found = {row.lease_id: each for row, each in zip(rows, described, strict=True)}
    shared: dict[Family, int] = {}
    for row in rows:
        if (family := _family(row)) is not None and row.shared_blocks:
            shared[family] = max(row.shared_blocks, shared.get(family, 0))
    for row in sorted(rows, key=lambda each: found[each.lease_id].steps_left, reverse=True):
        if (family := _family(row)) is not None and row.shared_blocks:
            own = row.blocks - row.shared_blocks + shared.pop(family, 0)
            found[row.lease_id] = replace(found[row.lease_id], blocks=own)
    return found


def _family(row: _Row) -> Family | None:
    """Return the family of a reservation's job; None if it has none, or has left its reservation."""
    if row.family is None or row.tenant_id is None or row.state != "held":
        return None
    return Family(row.tenant_id, row.family)


def _reserved(row: _Row) -> Reserved:
    """Describe a reservation for the packing.

    A draining one has no owner and is leaving: its room needs no further preemption.
    """
    if row.lane is None or row.state != "held":
        return Reserved(
            row.job_id, row.blocks, steps_left=0, is_leaving=True, output_tokens=row.output_tokens
        )
    held_tokens = row.prompt_tokens + row.completion_tokens
    # A follower that has said nothing may never have reached the engine.
    has_read = row.completion_tokens > row.output_before
    return Reserved(
        job_id=row.job_id,
        blocks=row.blocks,
        steps_left=steps(0 if has_read else held_tokens, max(0, row.output_tokens - row.completion_tokens)),
        lane=Lane(row.lane),
        recompute_tokens=None if row.num_yields or row.is_whole else held_tokens,
        num_preemptions=row.num_preemptions,
        is_whole=row.is_whole,
        new_tokens=row.completion_tokens - row.output_before,
        is_going=not row.is_waiting,
        is_leaving=row.stop_reason in (StopReason.CANCEL, StopReason.EXPIRE, StopReason.PREEMPT),
        output_tokens=row.output_tokens,
        family=None if row.text_id is None else _family(row),
        text_id=row.text_id or row.job_id,
        reserved_blocks=row.blocks,
        has_read=has_read,
        rank=row.rank or 0,
        prompt_tokens=row.prompt_tokens,
        unread_tokens=0 if has_read else held_tokens,
    )
