"""Turns: how workers take, keep and give back the rows that wait for them, fairly between tenants.

Any row may be the one that kills the worker that touches it. So a worker takes a row under a lease and
commits that, with the attempt counted, before the work starts. The work holds no transaction, and the lease's
id fences what it writes at the end. A row whose worker dies is free once its lease runs out; one that fails
waits longer each time; after a number of attempts it is given up.

The search for the next row jumps from tenant to tenant through an index: a hundred thousand rows of one
tenant cost another one nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Final, TypeVar
from uuid import UUID

from sqlalchemy import Select, TextClause, func, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from jobs.ids import uuid7
from jobs.models import Batch, Document, Job, Summary
from jobs.models.turn import TenantTurn, WorkKind

Held = TypeVar("Held", Batch, Document, Job, Summary)

_FIRST_PAUSE: Final = timedelta(seconds=5)
_MAX_DOUBLINGS: Final = 7  # of the first pause: eleven minutes
# Most rows that one claim brings back: enough to keep up, few enough for a short transaction.
_MAX_RETURNED: Final = 100

# Free the rows whose worker died and those whose time has come. A subquery reads the clock once: compared
# with the clock itself, which moves on, the index would be read to its end.
_BRING_BACK: Final = """
    WITH lost AS (
        SELECT id FROM {table} WHERE {held} AND lease_expires_at <= clock_timestamp()
        LIMIT :limit FOR NO KEY UPDATE SKIP LOCKED
    ), due AS (
        SELECT id FROM {table} WHERE {put_off} AND {later} <= (SELECT clock_timestamp())
        ORDER BY {later} LIMIT :limit FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE {table} SET lease_id = NULL, lease_expires_at = NULL, {later} = NULL
    WHERE id IN (SELECT id FROM lost UNION ALL SELECT id FROM due)
"""

# The tenants with a waiting row, found by jumps through the index, in the order of their turns.
_TENANTS: Final = """
    WITH RECURSIVE waiting (id) AS (
        (SELECT tenant_id FROM {table} WHERE {waiting} ORDER BY tenant_id LIMIT 1)
        UNION ALL
        SELECT (SELECT tenant_id FROM {table} WHERE {waiting} AND tenant_id > waiting.id
                ORDER BY tenant_id LIMIT 1)
        FROM waiting WHERE waiting.id IS NOT NULL
    ), under_way AS (
        SELECT tenant_id, count(*) AS num FROM {table}
        WHERE {held} AND lease_expires_at > clock_timestamp() GROUP BY tenant_id
    )
    SELECT waiting.id FROM waiting
    LEFT JOIN under_way ON under_way.tenant_id = waiting.id
    LEFT JOIN turns ON turns.kind = :kind AND turns.tenant_id = waiting.id
    WHERE waiting.id IS NOT NULL AND (paused_until IS NULL OR paused_until <= clock_timestamp())
    ORDER BY coalesce(under_way.num, 0), turns.served_at NULLS FIRST, waiting.id
"""

# Take the tenant's oldest row that no transaction is changing. The counter stays within its smallint.
_TAKE: Final = """
    UPDATE {table} SET lease_id = :lease_id, lease_expires_at = clock_timestamp() + :lease,
        {counter} = least({counter} + 1, 32767)
    WHERE id = (SELECT id FROM {table} WHERE {waiting} AND tenant_id = :tenant_id
                ORDER BY id LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED)
    RETURNING id, {counter} AS attempt
"""

# Take the same row and, if it and those after it are small and never failed, as many as there is room for.
# One that failed is taken alone: it may be what kills workers, and would cost its neighbours their attempts.
_TAKE_SET: Final = """
    WITH oldest AS (
        SELECT id, {size} AS size, {counter} AS attempts FROM {table}
        WHERE {waiting} AND tenant_id = :tenant_id ORDER BY id LIMIT :num FOR NO KEY UPDATE SKIP LOCKED
    ), taken AS (
        SELECT id, row_number() OVER following AS place, sum(size) OVER following AS together,
            bool_and(coalesce(size <= :small AND attempts = 0, false)) OVER following AS may_share
        FROM oldest WINDOW following AS (ORDER BY id)
    )
    UPDATE {table} SET lease_id = gen_random_uuid(), lease_expires_at = clock_timestamp() + :lease,
        {counter} = least({counter} + 1, 32767)
    WHERE id IN (SELECT id FROM taken WHERE (place = 1 AND (may_share OR :alone))
                 OR (may_share AND together <= :most))
    RETURNING id, lease_id, {counter} AS attempt,
        coalesce({size} <= :small AND {counter} = 1, false) AS may_share
"""

# Skip rows that another transaction is changing: their leases keep their time until the next renewal.
_PROLONG: Final = """
    UPDATE {table} SET lease_expires_at = clock_timestamp() + :lease
    WHERE id IN (SELECT id FROM {table} WHERE {held} AND id = ANY(:ids) AND lease_id = ANY(:leases)
                 AND lease_expires_at > clock_timestamp() FOR NO KEY UPDATE SKIP LOCKED)
"""
_STILL_HELD: Final = """
    SELECT lease_id FROM {table} WHERE {held} AND id = ANY(:ids) AND lease_id = ANY(:leases)
    AND lease_expires_at > clock_timestamp()
"""

_GIVE_BACK: Final = """
    UPDATE {table} SET lease_id = NULL, lease_expires_at = NULL, {counter} = {counter} - :given,
        {later} = clock_timestamp() + CAST(:after AS interval)
    WHERE id = :id AND lease_id = :lease_id AND {held}
    RETURNING id
"""

# Lock the rows whether they are put off or not, so as to wait for a worker that is just putting one off.
_HOLD: Final = (
    "SELECT id FROM {table} WHERE id = ANY(:ids) AND state = '{state}' ORDER BY id FOR NO KEY UPDATE"
)
_CLEAR_PAUSE: Final = "UPDATE {table} SET {later} = NULL WHERE id = ANY(:ids) AND {put_off}"


@dataclass(frozen=True, slots=True)
class Turn:
    """A row that is ours to work on.

    Attributes:
        lease_id: the fence of every later write.
        attempt: 1 for the first; above `kind.max_attempts` all that is left is to give the row up.
    """

    kind: WorkKind
    row_id: UUID
    tenant_id: UUID
    lease_id: UUID
    attempt: int

    @property
    def is_last(self) -> bool:
        """True if no attempt is left after this one."""
        return self.attempt >= self.kind.max_attempts

    @property
    def is_spent(self) -> bool:
        """True if every attempt is spent, the last one with its worker."""
        return self.attempt > self.kind.max_attempts


@dataclass(frozen=True, slots=True)
class Room:
    """How many rows may be taken together.

    Attributes:
        num: rows.
        size: sum of their sizes.
        small: the largest of a row that shares a set with others.
    """

    num: int
    size: int
    small: int


def claim(session: Session, kind: WorkKind, *, lease: timedelta) -> Turn | None:
    """Take the next row under a lease.

    That is the oldest row of the tenant with the fewest rows under way; among several such tenants, of the
    one that was served longest ago. Commit before the work begins: otherwise a crash caused by the row would
    not count as an attempt.

    Returns:
        None if no waiting row may be taken now.
    """
    session.execute(_statement(_BRING_BACK, kind), {"limit": _MAX_RETURNED})
    for tenant_id in session.scalars(_statement(_TENANTS, kind), {"kind": kind.name}).all():
        lease_id = uuid7()
        values = {"tenant_id": tenant_id, "lease_id": lease_id, "lease": lease}
        taken = session.execute(_statement(_TAKE, kind), values).one_or_none()
        if taken is not None:
            _serve(session, kind, tenant_id)
            return Turn(kind, taken.id, tenant_id, lease_id, taken.attempt)
    return None


def claim_set(session: Session, kind: WorkKind, room: Room, *, lease: timedelta) -> list[Turn]:
    """Take the next row under a lease or, if it is small, several small rows together.

    The order is that of `claim`. Tenants with small rows share the room. Commit before the work begins.

    Returns:
        Nothing if no waiting row may be taken now; one row, of any size; or several small ones that never
        failed before.
    """
    session.execute(_statement(_BRING_BACK, kind), {"limit": _MAX_RETURNED})
    tenant_ids = session.scalars(_statement(_TENANTS, kind), {"kind": kind.name}).all()
    taken: list[Turn] = []
    for number, tenant_id in enumerate(tenant_ids[: room.num]):
        share = max(1, (room.num - len(taken)) // (len(tenant_ids) - number))
        most = room.size // len(tenant_ids)
        values = {"tenant_id": tenant_id, "lease": lease, "num": share, "small": room.small, "most": most}
        rows = session.execute(_statement(_TAKE_SET, kind), values | {"alone": not taken})
        found = sorted(rows, key=lambda row: row.id)
        taken += [Turn(kind, row.id, tenant_id, row.lease_id, row.attempt) for row in found]
        if found:
            _serve(session, kind, tenant_id)
        if any(not row.may_share for row in found):
            break
    return taken


def renew(session: Session, turns: Sequence[Turn], *, lease: timedelta) -> set[UUID]:
    """Prolong the leases of these turns, which are all of one kind.

    Never revives a lease that has run out.

    Returns:
        The lease ids that still hold; the others are lost.
    """
    if not turns:
        return set()
    kind = turns[0].kind
    which = {"ids": [each.row_id for each in turns], "leases": [each.lease_id for each in turns]}
    session.execute(_statement(_PROLONG, kind), which | {"lease": lease})
    return set(session.scalars(_statement(_STILL_HELD, kind), which))


def held(table: type[Held], turn: Turn) -> Select[Held]:
    """Select the turn's row while it is in the state of its work and under the turn's lease."""
    return select(table).where(
        table.id == turn.row_id, table.state == turn.kind.state, table.lease_id == turn.lease_id
    )


def release(session: Session, turn: Turn, *, after: timedelta | None = None) -> bool:
    """Give the row and its attempt back.

    For work that was interrupted by something other than the row itself.

    Args:
        session: the caller's transaction.
        turn: the turn, whose lease may be lost.
        after: postpone the row for this long; None: it keeps its place.

    Returns:
        False if the lease is lost; nothing was written.
    """
    return _give_back(session, turn, after=after, given=1)


def back_off(session: Session, turn: Turn) -> bool:
    """Put the row off after a failure, each time for twice as long.

    The attempt is spent.

    Returns:
        False if the lease is lost; nothing was written.
    """
    pause = _FIRST_PAUSE * 2 ** min(turn.attempt - 1, _MAX_DOUBLINGS)
    return _give_back(session, turn, after=pause, given=0)


def pause_tenant(session: Session, turn: Turn, *, lasting: timedelta) -> None:
    """Take no row of this kind from the turn's tenant for a while."""
    _serve(session, turn.kind, turn.tenant_id, paused_until=func.clock_timestamp() + lasting)


def clear_pause(session: Session, kind: WorkKind, row_ids: Sequence[UUID]) -> None:
    """Make those of these rows that are postponed available now."""
    which = {"ids": list(row_ids)}
    if session.execute(_statement(_HOLD, kind), which).all():
        session.execute(_statement(_CLEAR_PAUSE, kind), which)


def _give_back(session: Session, turn: Turn, *, after: timedelta | None, given: int) -> bool:
    which = {"id": turn.row_id, "lease_id": turn.lease_id, "after": after, "given": given}
    return session.execute(_statement(_GIVE_BACK, turn.kind), which).one_or_none() is not None


def _serve(session: Session, kind: WorkKind, tenant_id: UUID, **values: object) -> None:
    """Note that the tenant was served, unless another worker is just noting it.

    A worker that freezes before it commits must not keep the others from their claims.
    """
    found = {"served_at": func.clock_timestamp(), **values}
    mine = select(TenantTurn.kind).where(TenantTurn.kind == kind.name, TenantTurn.tenant_id == tenant_id)
    if session.scalar(mine) is None:
        first = insert(TenantTurn).values(kind=kind.name, tenant_id=tenant_id, **found)
        session.execute(first.on_conflict_do_nothing())
    elif session.scalar(mine.with_for_update(skip_locked=True)) is not None:
        session.execute(
            update(TenantTurn)
            .where(TenantTurn.kind == kind.name, TenantTurn.tenant_id == tenant_id)
            .values(**found)
            .execution_options(synchronize_session=False)
        )


@cache
def _statement(template: str, kind: WorkKind) -> TextClause:
    """Write the statement for this kind's table; nothing in it comes from outside."""
    return text(
        template.format(
            table=kind.table,
            state=kind.state,
            counter=kind.counter,
            later=kind.later,
            waiting=kind.waiting,
            held=kind.held,
            put_off=kind.put_off,
            size=kind.size,
        )
    )
