"""Choose the events to send next: fair between tenants, and between the destinations of each.

A destination may have a limited number of exchanges at once, and so may a server over all of a tenant's
destinations there. A destination that fails five times in a row is paused, longer each time, and then probed
with one exchange; until that succeeds, its other events wait without being tried.

Tenants take turns. Each may have three times as many slots of a process as it leaves free: one alone takes
three quarters, two take three sevenths each, and the next tenant always finds some free, however long the
exchanges of the others hang.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.settings import WebhookSettings
from jobs.webhooks.destinations import RECHECK

BREAKER_FAILURES: Final = 5  # in a row, before a destination is paused
# Slots that a tenant may hold for each slot that stays free (a dynamic threshold; Choudhury and Hahne, 1998).
SHARE: Final = 3
_MIN_LOOKED_AT: Final = 8  # destinations of each tenant

# For each waiting tenant, the destinations due first: the number of rows it reads is bounded by tenants and
# slots, however many destinations wait.
LOOK: Final = text(f"""
    WITH RECURSIVE tenants (id) AS (
        (SELECT tenant_id FROM webhook_destinations WHERE next_due_at IS NOT NULL
         ORDER BY tenant_id, next_due_at LIMIT 1)
        UNION ALL
        SELECT (SELECT d.tenant_id FROM webhook_destinations d
                WHERE d.next_due_at IS NOT NULL AND d.tenant_id > tenants.id
                ORDER BY d.tenant_id, d.next_due_at LIMIT 1)
        FROM tenants WHERE tenants.id IS NOT NULL
    ), due AS (
        SELECT d.* FROM tenants CROSS JOIN LATERAL (
            SELECT id, tenant_id, server_id, next_due_at FROM webhook_destinations
            WHERE tenant_id = tenants.id AND next_due_at <= :now ORDER BY next_due_at
            LIMIT greatest({_MIN_LOOKED_AT}, 2 * :limit / (SELECT count(*) FROM tenants))
        ) d
    ), sending AS MATERIALIZED (
        SELECT s.destination_id, coalesce(d.server_id, s.destination_id) AS server_id
        FROM webhook_dispatches s LEFT JOIN webhook_destinations d ON d.id = s.destination_id
        WHERE s.state = 'sending'
    ), ready AS (
        SELECT due.*, b.paused_until, CASE WHEN b.paused_until > :now THEN 0
            WHEN b.num_failures >= {BREAKER_FAILURES} THEN greatest(0, 1 - coalesce(own.number, 0))
            ELSE greatest(0, :at_most - coalesce(own.number, 0)) END AS room,
            :at_most_server - coalesce(theirs.number, 0) AS server_room
        FROM due LEFT JOIN webhook_breakers b ON b.destination_id = due.id
            LEFT JOIN (SELECT destination_id, count(*) AS number FROM sending GROUP BY 1) own
                ON own.destination_id = due.id
            LEFT JOIN (SELECT server_id, count(*) AS number FROM sending GROUP BY 1) theirs
                ON theirs.server_id = due.server_id
    )
    SELECT ready.id, tenant_id, server_id, paused_until, server_room, room, ARRAY(
        SELECT d.id FROM webhook_dispatches d
        WHERE d.destination_id = ready.id AND d.state = 'pending' AND d.next_attempt_at <= :now
        ORDER BY d.next_attempt_at LIMIT ready.room
    ) AS due FROM ready ORDER BY next_due_at
""")  # noqa: S608  # numbers of ours


@dataclass(frozen=True, slots=True)
class Slots:
    """The exchanges of this process.

    Attributes:
        num_free: exchanges that can begin now.
        held: under way, by tenant.
    """

    num_free: int
    held: Mapping[UUID, int] = field(default_factory=dict)


@dataclass(slots=True)
class DueDestination:
    """A destination that is due.

    Attributes:
        room: further exchanges it may have now.
        due: its dispatches, at most `room`.
        paused_until: no exchange before this; None: it is not paused.
    """

    id: UUID
    tenant_id: UUID
    server_id: UUID
    room: int
    due: deque[UUID]
    paused_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Selection:
    """The dispatches to send next.

    Attributes:
        dispatches: in the order in which to send them.
        not_before: for each considered destination, the earliest time to consider it again.
    """

    dispatches: Sequence[UUID]
    not_before: Mapping[UUID, datetime]


def choose(session: Session, settings: WebhookSettings, slots: Slots, *, now: datetime) -> Selection:
    """Choose due dispatches for the free slots."""
    asked = {
        "now": now,
        "limit": slots.num_free,
        "at_most": settings.endpoint_concurrency,
        "at_most_server": settings.max_per_server,
    }
    rows = session.execute(LOOK, asked).all()
    waiting = [
        DueDestination(row.id, row.tenant_id, row.server_id, row.room, deque(row.due), row.paused_until)
        for row in rows
    ]
    room = {row.server_id: row.server_room for row in rows}
    dispatches = share_out(waiting, slots, room)
    return Selection(dispatches, {each.id: _next_look(each, room, now=now) for each in waiting})


def share_out(waiting: Iterable[DueDestination], slots: Slots, room: dict[UUID, int]) -> list[UUID]:
    """Share free slots among tenants in turns, and within each among destinations.

    Args:
        waiting: in order of due time; the chosen dispatches are removed from them.
        slots: of this process.
        room: further exchanges that each server may have; the given ones are subtracted.

    Returns: dispatches in the order of their turns.
    """
    turns: dict[UUID, deque[DueDestination]] = {}
    for each in waiting:
        turns.setdefault(each.tenant_id, deque()).append(each)
    held = Counter(slots.held)
    num_free = slots.num_free
    given: list[UUID] = []
    tenants = deque(turns)
    while tenants and num_free:
        tenant_id = tenants.popleft()
        destinations = turns[tenant_id]
        while destinations and not _has_turn(destinations[0], room):
            destinations.popleft()
        if not destinations or held[tenant_id] >= SHARE * num_free:
            continue  # it gets no more in this call
        taken = destinations.popleft()
        given.append(taken.due.popleft())
        taken.room -= 1
        room[taken.server_id] -= 1
        held[tenant_id] += 1
        num_free -= 1
        destinations.append(taken)
        tenants.append(tenant_id)
    return given


def _has_turn(each: DueDestination, room: Mapping[UUID, int]) -> bool:
    return bool(each.due) and each.room > 0 and room[each.server_id] > 0


def _next_look(each: DueDestination, room: Mapping[UUID, int], *, now: datetime) -> datetime:
    if each.paused_until is not None and each.paused_until > now:
        return each.paused_until
    has_room = each.room > 0 and room[each.server_id] > 0
    return now if has_room else now + RECHECK
