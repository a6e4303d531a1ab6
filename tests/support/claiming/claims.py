"""Claims of their own, apart from the ticks in which workers make them."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from sqlalchemy.orm import Session

from jobs import lifecycle
from jobs.database import statements
from jobs.database.statements import Statement
from jobs.engines import reservations
from jobs.scheduling import engine_load, queue, tick
from jobs.scheduling.pack import pack
from jobs.scheduling.prefixes.prefix_replay import Answered
from jobs.scheduling.sizing import ClaimPolicy
from jobs.scheduling.tick import Tick
from jobs.starting import Claim


class FreedSlot(NamedTuple):
    """A job whose request is over: its reservation, tokens generated in all, and what the engine had."""

    lease_id: UUID
    generated_tokens: int
    cached_tokens: int | None = None


def claim(session: Session, engine_name: str, policy: ClaimPolicy) -> Claim | None:
    """Start the next job for this engine and reserve its blocks.

    Returns:
        None if no job may start now.
    """
    return next(iter(claim_all(session, engine_name, policy, limit=1).claims), None)


def claim_all(
    session: Session,
    engine_name: str,
    policy: ClaimPolicy,
    *,
    ended: Sequence[FreedSlot] = (),
    limit: int | None = None,
) -> Tick:
    """Close the reservations of `ended`, and start what fits then; see `tick.claim`."""
    locked = engine_load.lock(session, engine_name)
    _close(session, ended)
    answered = {each.lease_id: Answered(each.generated_tokens, each.cached_tokens) for each in ended}
    return tick.claim(session, *locked, policy, answered=answered, limit=limit) if locked else Tick()


def choose(session: Session, engine_name: str, policy: ClaimPolicy) -> Callable[[], list[Claim]]:
    """Choose from the queue as a claim does; return what starts the jobs then, unless they have changed."""
    locked = engine_load.lock(session, engine_name)
    assert locked is not None
    engine, now = locked
    load = engine_load.read(session, engine)
    free_slots = load.budget.free_slots
    found = queue.read(
        session, engine, now, policy, free_slots=free_slots, prefixes=None, elsewhere=frozenset()
    )

    def start() -> list[Claim]:
        while chosen := pack(found, load):
            started = lifecycle.claim(session, chosen, lease_duration=policy.lease, engine_name=engine_name)
            if started or not found.candidates:
                return started
        return []

    return start


def _close(session: Session, ended: Sequence[FreedSlot]) -> None:
    given = {
        "lease_ids": [each.lease_id for each in ended],
        "produced": [each.generated_tokens for each in ended],
        "cached": [each.cached_tokens for each in ended],
    }
    if ended:
        statements.fetch(session, _CLOSE, given)


_CLOSE: Final = Statement(f"""
    WITH freed AS (
        SELECT *, true AS is_done
        FROM unnest(%(lease_ids)s::uuid[], %(produced)s::integer[], %(cached)s::integer[])
            AS given(lease_id, produced, cached)
    ), late AS (
        SELECT tenant_id, model, engine_name, 0 AS num_tokens FROM account_shards WHERE false
    ), {reservations.RELEASED} {reservations.SETTLE}
""")  # noqa: S608  # built from constants
