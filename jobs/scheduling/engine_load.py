"""An engine with its reservations, as the packing sees it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from sqlalchemy.orm import Session

from jobs.database import statements
from jobs.database.statements import Query, Rows, Statement
from jobs.engines import registry
from jobs.engines.capacity import Budget, Capacity, ReservedBlocks, free_budget
from jobs.engines.registry import EngineRow
from jobs.models import Engine, Job, Reservation
from jobs.models.tenant import HALTED_TENANTS
from jobs.scheduling.packing import Running
from jobs.scheduling.prefixes.followers import Family, Reader
from jobs.scheduling.prefixes.prefix_replay import Guest
from jobs.scheduling.sizing import steps
from jobs.states import Lane, StopReason


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """One engine at one moment.

    Attributes:
        capacity: of the engine.
        running: its reservations, including draining ones, by lease.
        budget: what they leave free.
        interactive_waits: an interactive job of its model is queued, and its tenant's queue is not halted.
        guests: its reservations as the replay of its cache follows them, by lease.
    """

    capacity: Capacity
    running: dict[UUID, Running]
    budget: Budget
    interactive_waits: bool = False
    guests: dict[UUID, Guest] = field(default_factory=dict)

    @property
    def readers(self) -> dict[UUID, Reader]:
        """The running jobs that have a family, by lease."""
        return {lease_id: each.reader for lease_id, each in self.guests.items() if each.reader is not None}


def find(session: Session, engine_name: str) -> tuple[EngineRow, datetime] | None:
    """Read the engine's row and the database's clock. Returns None if the engine never registered."""
    return _row(statements.fetch(session, _FIND, {"engine_name": engine_name}))


def lock(session: Session, engine_name: str) -> tuple[EngineRow, datetime] | None:
    """Lock the engine's row and read the database's clock.

    The lock serializes all claims on the engine. Later statements read its reservations: their snapshots are
    younger than the lock and so see every reservation made before.

    Returns:
        None if the engine never registered.
    """
    return locked(statements.fetch(session, *locking(engine_name)))


def locking(engine_name: str) -> Query:
    """Return the query of `lock`; `locked` takes its rows."""
    return Query(_LOCK, {"engine_name": engine_name})


def locked(found: Rows) -> tuple[EngineRow, datetime] | None:
    """Return what `lock` does, from the rows of its query."""
    return _row(found)


def read(session: Session, engine: Engine | EngineRow) -> EngineLoad:
    """Read what is reserved on this engine now."""
    return load_of(engine, statements.fetch(session, *reading(engine.name)))


def reading(engine_name: str) -> Query:
    """Return the query of `read`; `load_of` takes its rows."""
    return Query(_RESERVED, {"engine_name": engine_name})


def load_of(engine: Engine | EngineRow, found: Rows) -> EngineLoad:
    """Return what `read` does, from the rows of its query."""
    rows = [_Reserved(*row[1:]) for row in found if row[1] is not None]
    return _load_of(engine, rows, interactive_waits=found[0][0])


def of(engine: Engine, reserved: Sequence[tuple[Reservation, Job | None]]) -> EngineLoad:
    """Describe the load by reservations that are read already, each with its job if that has its lease."""
    rows = [
        _Reserved(
            *(getattr(reservation, name) for name in _OF_RESERVATION),
            *(getattr(job, name, None) for name in _OF_JOB),
        )
        for reservation, job in reserved
    ]
    return _load_of(engine, rows)


def _load_of(
    engine: Engine | EngineRow, rows: "Sequence[_Reserved]", *, interactive_waits: bool = False
) -> EngineLoad:
    capacity = registry.capacity_of(engine)
    running = _freed_by_end(rows)
    held = [ReservedBlocks(blocks=running[row.lease_id].blocks, alone=row.alone) for row in rows]
    return EngineLoad(
        capacity=capacity,
        running=running,
        budget=free_budget(capacity, held, spare_blocks=engine.spare_blocks),
        interactive_waits=interactive_waits,
        guests={
            row.lease_id: Guest(_reader(row), running[row.lease_id].blocks, row.output_tokens) for row in rows
        },
    )


def _row(found: Rows) -> tuple[EngineRow, datetime] | None:
    return (EngineRow(*found[0][:-1]), found[0][-1]) if found else None


class _Reserved(NamedTuple):
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


_FIRST_OF_JOB: Final = _Reserved._fields.index("lane")
_OF_RESERVATION: Final = _Reserved._fields[:_FIRST_OF_JOB]
_OF_JOB: Final = _Reserved._fields[_FIRST_OF_JOB:]
_FIND_SQL: Final = f"""
    SELECT {", ".join(EngineRow._fields)}, clock_timestamp() FROM engines WHERE name = %(engine_name)s::text
"""  # noqa: S608  # built from constants
_FIND: Final = Statement(_FIND_SQL)
_LOCK: Final = Statement(f"{_FIND_SQL} FOR UPDATE")
_RESERVED: Final = Statement(f"""
    SELECT waiting.interactive,
        {", ".join(f"{'jobs' if name in _OF_JOB else 'reserved'}.{name}" for name in _Reserved._fields)}
    FROM (
        SELECT EXISTS (
            SELECT FROM jobs WHERE state = 'queued' AND lane = '{Lane.INTERACTIVE.value}'
                AND model = (SELECT model FROM engines WHERE name = %(engine_name)s::text)
                AND tenant_id <> ALL ({HALTED_TENANTS})
        ) AS interactive
    ) AS waiting
    LEFT JOIN reservations AS reserved ON reserved.engine_name = %(engine_name)s::text
    LEFT JOIN jobs ON jobs.id = reserved.job_id AND jobs.lease_id = reserved.lease_id
    """)  # noqa: S608  # built from constants


def _freed_by_end(rows: Sequence[_Reserved]) -> dict[UUID, Running]:
    """Describe the reservations with the blocks that the end of each frees, in order of the rows.

    Shared blocks are freed with the last job that has them. Of a draining one nothing is known to be shared.
    """
    found = {row.lease_id: _running(row) for row in rows}
    shared: dict[Family, int] = {}
    for row in rows:
        if (family := _family(row)) is not None and row.shared_blocks:
            shared[family] = max(row.shared_blocks, shared.get(family, 0))
    for row in sorted(rows, key=lambda each: found[each.lease_id].steps_left, reverse=True):
        if (family := _family(row)) is not None and row.shared_blocks:
            own = row.blocks - row.shared_blocks + shared.pop(family, 0)
            found[row.lease_id] = replace(found[row.lease_id], blocks=own)
    return found


def _family(row: _Reserved) -> Family | None:
    """Return the family of a reservation's job; None if it has none, or has left its reservation."""
    if row.family is None or row.tenant_id is None or row.state != "held":
        return None
    return Family(row.tenant_id, row.family)


def _reader(row: _Reserved) -> Reader | None:
    family = _family(row)
    if family is None or row.text_id is None:
        return None
    # A follower that has said nothing may never have reached the engine.
    has_read = row.completion_tokens > row.output_before
    return Reader(
        family,
        row.job_id,
        row.text_id,
        row.blocks,
        has_read=has_read,
        rank=row.rank or 0,
        prompt_tokens=row.prompt_tokens,
    )


def _running(row: _Reserved) -> Running:
    """Describe a reservation for the packing.

    A draining one has no owner and is leaving: its room needs no further preemption.
    """
    if row.lane is None or row.state != "held":
        return Running(row.job_id, row.blocks, steps_left=0, is_leaving=True)
    held_tokens = row.prompt_tokens + row.completion_tokens
    has_read = row.completion_tokens > row.output_before
    return Running(
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
    )
