"""What ran and runs on engines: one look for all who watch any of them."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import md5
from typing import Any, Final, NamedTuple
from uuid import UUID

from sqlalchemy import ARRAY, Integer, Interval, Row, Uuid, bindparam, text
from sqlalchemy.orm import Session

from jobs.engines.registry import why_not_ready
from jobs.scheduling.halts import Halt, Operator
from jobs.states.halt import HaltKind

# Runs that are over: more would neither be seen nor be quick to draw.
MOST_OVER: Final = 160
LONGEST: Final = timedelta(hours=6)
# A picture moves on so often, though nothing else changes.
_STEP_SECONDS: Final = 2
_IDLE_SECONDS: Final = 30
_JUST_NOW: Final = timedelta(minutes=1)


class Bar(NamedTuple):
    """A run on an engine, over or not.

    Attributes:
        tenant_id: the job's owner. None: the job was deleted.
        first_token_at: None: none came, or it was not told.
        ended_at: None: the engine has it still.
        outcome: an `AttemptOutcome`; None: it is not over.
        state: of the reservation, `held` or `draining`; `over`: there is none any more.
        is_waiting: it used up its blocks and waits for more.
        shared_blocks: of the blocks, those that count once with others of its tenant and family.
        completion_tokens: that this run generated.
    """

    lease_id: UUID
    job_id: UUID
    tenant_id: UUID | None
    started_at: datetime
    first_token_at: datetime | None
    ended_at: datetime | None
    outcome: str | None
    state: str
    is_waiting: bool
    blocks: int
    shared_blocks: int
    family: bytes | None
    prompt_tokens: int | None
    completion_tokens: int | None


@dataclass(frozen=True, slots=True)
class EngineActivity:
    """An engine and what ran on it, as pages show it; equal while nothing on them changes.

    Attributes:
        at: when it was looked at, coarsely, but not before the newest start or end.
        is_up: its worker would give it jobs, but for a halt.
        why_down: why no job starts but for a halt; None: it is up.
        halt: an operator's order; None: it starts jobs.
        bars: oldest first.
        is_cut: there are older runs.
    """

    name: str
    model: str
    slots: int
    waiting_room: int
    blocks: int
    tokens_per_block: int
    at: datetime
    is_up: bool
    why_down: str | None
    halt: Halt | None
    bars: Sequence[Bar]
    is_cut: bool

    @property
    def lanes(self) -> int:
        """Requests that it has at once: those in its slots and those that wait for one."""
        return self.slots + self.waiting_room

    @property
    def held(self) -> list[Bar]:
        """What the engine has now."""
        return [each for each in self.bars if each.state != "over"]

    @property
    def newest_over(self) -> list[Bar]:
        """What it has no longer, the last to end first."""
        over = [each for each in self.bars if each.ended_at]
        return sorted(over, key=lambda each: each.ended_at or each.started_at, reverse=True)

    @property
    def blocks_held(self) -> int:
        """How many blocks that takes; shared ones count once."""
        shared: dict[object, int] = {}
        for bar in self.held:
            key = (bar.tenant_id, bar.family)
            shared[key] = max(bar.shared_blocks, shared.get(key, 0))
        return sum(bar.blocks - bar.shared_blocks for bar in self.held) + sum(shared.values())


def engine_id(name: str) -> UUID:
    """Return what watchers know the engine by, as the query computes it."""
    return UUID(md5(name.encode(), usedforsecurity=False).hexdigest())


def read_activities(
    session: Session, wanted: Collection[UUID] | None = None, *, most: int = MOST_OVER
) -> dict[UUID, EngineActivity]:
    """Read these engines, or all.

    Args:
        session: one that sees the rows of all tenants.
        wanted: ids of engines; None: all of them.
        most: runs of each engine that are over.

    Returns:
        Those that exist, by id.
    """
    given = {"ids": None if wanted is None else list(wanted), "span": LONGEST, "most": most}
    rows: dict[str, list[Row[Any]]] = defaultdict(list)
    for row in session.execute(_ACTIVITY, given):
        rows[row.name].append(row)
    return {engine_id(name): _activity(found, most) for name, found in rows.items()}


def _activity(rows: Sequence[Row[Any]], most: int) -> EngineActivity:
    first = rows[0]
    bars: dict[UUID, Bar] = {}
    # A run that is over while the engine may still be at it is shown as what the engine has.
    for row in sorted((row for row in rows if row.lease_id), key=lambda row: row.state != "over"):
        bars[row.lease_id] = Bar(*row[-len(Bar._fields) :])
    num_over = sum(row.state == "over" for row in rows)
    last = max((bar.ended_at or first.now for bar in bars.values()), default=first.now - LONGEST)
    step = _STEP_SECONDS if first.now - last < _JUST_NOW else _IDLE_SECONDS
    at = datetime.fromtimestamp(first.now.timestamp() // step * step, UTC)
    at = max(at, *(bar.ended_at or bar.started_at for bar in bars.values()), at)
    halt = None
    if first.halt is not None:
        by = Operator(first.halted_by, first.halted_by_name)
        halt = Halt(HaltKind(first.halt), first.halted_reason, by, first.halted_since)
    why_down = why_not_ready(first, now=first.now)
    return EngineActivity(
        name=first.name,
        model=first.model,
        slots=first.max_batch_size,
        waiting_room=first.waiting_room,
        blocks=first.max_blocks,
        tokens_per_block=first.tokens_per_block,
        at=at,
        is_up=why_down is None,
        why_down=why_down,
        halt=halt,
        bars=tuple(sorted(bars.values(), key=lambda bar: (bar.started_at, bar.lease_id))),
        is_cut=num_over >= most,
    )


_ACTIVITY: Final = text("""
    SELECT engines.*, clock_timestamp() AS now, bar.lease_id, bar.job_id, jobs.tenant_id, bar.started_at,
        CASE WHEN bar.state = 'over' THEN bar.first_token_at
            WHEN jobs.lease_id = bar.lease_id AND jobs.first_token_at >= bar.started_at
            THEN jobs.first_token_at END,
        bar.ended_at, bar.outcome, bar.state, bar.is_waiting, coalesce(bar.blocks, 1),
        CASE WHEN jobs.lease_id = bar.lease_id AND jobs.family IS NOT NULL THEN bar.shared_blocks ELSE 0 END,
        jobs.family, coalesce(bar.prompt_tokens, jobs.prompt_tokens),
        CASE WHEN bar.state = 'over' THEN bar.completion_tokens
            WHEN jobs.lease_id = bar.lease_id THEN greatest(jobs.completion_tokens - bar.before, 0) END
    FROM engines LEFT JOIN LATERAL (
        (SELECT lease_id, job_id, started_at, first_token_at, ended_at, outcome, 'over' AS state,
            false AS is_waiting, blocks, 0 AS shared_blocks, prompt_tokens, completion_tokens, 0 AS before
        FROM attempts WHERE attempts.engine_name = engines.name AND ended_at > statement_timestamp() - :span
        ORDER BY ended_at DESC LIMIT :most)
        UNION ALL
        SELECT lease_id, job_id, created_at, NULL, NULL, NULL, state, is_waiting, blocks, shared_blocks,
            NULL, NULL, output_before
        FROM reservations WHERE reservations.engine_name = engines.name
    ) AS bar ON true LEFT JOIN jobs ON jobs.id = bar.job_id
    WHERE CAST(:ids AS uuid[]) IS NULL OR md5(engines.name)::uuid = ANY(:ids)
    ORDER BY engines.name
""").bindparams(
    bindparam("ids", type_=ARRAY(Uuid())),
    bindparam("span", type_=Interval()),
    bindparam("most", type_=Integer()),
)
