"""When each destination is due next: maintained by claims alone, so that writers of events never wait.

A transaction that makes a dispatch pending marks it unnoticed. A claim notices a bounded number of them for
each tenant and updates their destinations' times. All of that happens under the lock of claims.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit
from uuid import UUID, uuid5

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.database import statements
from jobs.database.advisory_locks import HOLD_ONE_OF, Lock
from jobs.database.statements import Query, Statement
from jobs.errors import DestinationLimitError

# A destination whose server has no room is checked again after this, unless a sender reports room earlier.
RECHECK: Final = timedelta(seconds=1)
# Dispatches that one claim notices, over all tenants; each tenant gets at least the minimum.
_MAX_NOTICED: Final = 1000
_MIN_NOTICED: Final = 20
_DEFAULT_PORTS: Final = {"https": 443, "http": 80}

# A destination named this recently is not written again: submissions must not wait for each other.
_KNOWN: Final = Statement("""
    SELECT id, named_at < clock_timestamp() - interval '10 min' AS is_stale
    FROM webhook_destinations WHERE id = ANY(%(ids)s::uuid[])
""")
_REGISTER_AGAIN: Final = Statement("""
    UPDATE webhook_destinations SET named_at = clock_timestamp() WHERE id IN (
        SELECT id FROM webhook_destinations WHERE id = ANY(%(ids)s::uuid[]) FOR UPDATE SKIP LOCKED)
""")
_COUNT: Final = Statement("""
    SELECT count(*) FROM (
        SELECT FROM webhook_destinations WHERE tenant_id = %(tenant_id)s::uuid LIMIT %(most)s::integer
    ) counted
""")
_REGISTER: Final = Statement("""
    INSERT INTO webhook_destinations (id, tenant_id, server_id)
    SELECT id, %(tenant_id)s::uuid, id FROM unnest(%(ids)s::uuid[]) AS id ON CONFLICT DO NOTHING
""")

# Also makes due the destinations that share a server with those whose exchanges have ended: only destinations
# that wait for room are due within so short a time.
_UNNOTICED: Final = text("""
    WITH RECURSIVE freed AS (
        UPDATE webhook_destinations SET next_due_at = :now
        WHERE server_id IN (
            SELECT server_id FROM webhook_destinations WHERE id = ANY(CAST(:freed AS uuid[])))
            AND next_due_at > :now AND next_due_at <= :soon
    ), tenants (id) AS (
        (SELECT tenant_id FROM webhook_dispatches WHERE state = 'pending' AND NOT is_noticed
         ORDER BY tenant_id LIMIT 1)
        UNION ALL
        SELECT (SELECT d.tenant_id FROM webhook_dispatches d
                WHERE d.state = 'pending' AND NOT d.is_noticed AND d.tenant_id > tenants.id
                ORDER BY d.tenant_id LIMIT 1)
        FROM tenants WHERE tenants.id IS NOT NULL
    )
    SELECT d.id, d.tenant_id, d.destination_id, d.endpoint_id, d.next_attempt_at, p.url AS endpoint_url
    FROM tenants CROSS JOIN LATERAL (
        SELECT id, tenant_id, destination_id, endpoint_id, next_attempt_at FROM webhook_dispatches
        WHERE tenant_id = tenants.id AND state = 'pending' AND NOT is_noticed
        ORDER BY id LIMIT greatest(:least, :most / (SELECT count(*) FROM tenants))
    ) d LEFT JOIN webhook_endpoints p ON p.id = d.endpoint_id
""")

_SCHEDULE: Final = text("""
    INSERT INTO webhook_destinations AS w (id, tenant_id, server_id, next_due_at)
    SELECT * FROM unnest(CAST(:id AS uuid[]), CAST(:tenant_id AS uuid[]), CAST(:server_id AS uuid[]),
        CAST(:due AS timestamptz[]))
    ON CONFLICT (id) DO UPDATE SET server_id = excluded.server_id,
        next_due_at = least(w.next_due_at, excluded.next_due_at)
""")

# A dispatch replayed meanwhile has another time, or a lock; the next claim notices it.
_UPDATE_DUE_TIMES: Final = text("""
    WITH marked AS (
        UPDATE webhook_dispatches SET is_noticed = true WHERE id IN (
            SELECT d.id
            FROM unnest(CAST(:ids AS uuid[]), CAST(:times AS timestamptz[])) AS seen (id, at)
                JOIN webhook_dispatches d ON d.id = seen.id
            WHERE d.state = 'pending' AND d.next_attempt_at = seen.at
            FOR UPDATE OF d SKIP LOCKED
        )
    )
    UPDATE webhook_destinations SET next_due_at = CASE WHEN earliest IS NOT NULL
        THEN greatest(earliest, not_before) END
    FROM (
        SELECT visited.id, not_before, (
            SELECT next_attempt_at FROM webhook_dispatches d
            WHERE d.destination_id = visited.id AND d.state = 'pending' ORDER BY next_attempt_at LIMIT 1
        ) AS earliest
        FROM unnest(CAST(:visited AS uuid[]), CAST(:not_before AS timestamptz[]))
            AS visited (id, not_before)
    ) found WHERE webhook_destinations.id = found.id
""")

_WAKE: Final = text("""
    UPDATE webhook_dispatches SET is_noticed = false WHERE id = (
        SELECT id FROM webhook_dispatches WHERE destination_id = :id AND state = 'pending'
        ORDER BY next_attempt_at LIMIT 1 FOR UPDATE SKIP LOCKED
    )
""")

# Runs concurrently with claims, without their lock: a page of waiting destinations without a due time, or
# with one later than their first dispatch and their pause.
_FORGOTTEN: Final = text("""
    WITH RECURSIVE waiting (id, number) AS (
        (SELECT destination_id, 1 FROM webhook_dispatches
         WHERE state = 'pending' AND destination_id > :after ORDER BY destination_id LIMIT 1)
        UNION ALL
        SELECT (SELECT d.destination_id FROM webhook_dispatches d
                WHERE d.state = 'pending' AND d.destination_id > waiting.id
                ORDER BY d.destination_id LIMIT 1), number + 1
        FROM waiting WHERE waiting.id IS NOT NULL AND number < :page
    ), forgotten AS (
        SELECT first.id FROM waiting CROSS JOIN LATERAL (
            SELECT d.id, d.is_noticed, d.next_attempt_at FROM webhook_dispatches d
            WHERE d.destination_id = waiting.id AND d.state = 'pending' ORDER BY d.next_attempt_at LIMIT 1
        ) first
        WHERE first.is_noticed AND NOT EXISTS (
            SELECT FROM webhook_destinations w LEFT JOIN webhook_breakers b ON b.destination_id = w.id
            WHERE w.id = waiting.id AND w.next_due_at - interval '1 min'
                <= greatest(first.next_attempt_at, b.paused_until, clock_timestamp()))
    ), free AS (
        SELECT id FROM webhook_dispatches WHERE id IN (SELECT id FROM forgotten) FOR UPDATE SKIP LOCKED
    ), woken AS (
        UPDATE webhook_dispatches SET is_noticed = false
        WHERE id IN (SELECT id FROM free) AND state = 'pending'
    )
    SELECT max(id::text)::uuid FROM waiting HAVING count(id) = :page
""")

_IDLE: Final = text("""
    DELETE FROM webhook_destinations WHERE id IN (
        SELECT id FROM webhook_destinations w
        WHERE next_due_at IS NULL AND named_at < :before
            AND NOT EXISTS (SELECT FROM webhook_dispatches WHERE destination_id = w.id AND state = 'pending')
            AND NOT EXISTS (SELECT FROM webhook_dispatches WHERE destination_id = w.id AND state = 'sending')
        LIMIT :limit FOR UPDATE SKIP LOCKED
    ) AND next_due_at IS NULL RETURNING id
""")


@dataclass(frozen=True, slots=True)
class NewDispatch:
    """A dispatch that a claim has seen for the first time since it became pending."""

    id: UUID
    next_attempt_at: datetime


def server_id(tenant_id: UUID, url: str) -> UUID:
    """Return the id of a tenant URL's server: scheme, host and port."""
    return uuid5(tenant_id, _server(url))


@lru_cache(maxsize=4096)
def _server(url: str) -> str:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # stored by a release with other rules
        return url
    scheme = parts.scheme.lower()
    host = (parts.hostname or "").removesuffix(".")
    return f"{scheme}://{host}:{port or _DEFAULT_PORTS.get(scheme, 0)}"


def register(session: Session, tenant_id: UUID, urls: Collection[str], *, limit: int) -> None:
    """Count the URLs' servers as destinations of the tenant for at least an hour.

    Raises:
        DestinationLimitError: with them there would be more than `limit`; nothing was counted.
    """
    ids = sorted({server_id(tenant_id, url) for url in urls})
    known: dict[UUID, bool] = dict(statements.fetch(session, _KNOWN, {"ids": ids}))
    if stale := [each for each, is_stale in known.items() if is_stale]:
        statements.fetch(session, _REGISTER_AGAIN, {"ids": stale})
    if new := [each for each in ids if each not in known]:
        _register_new(session, tenant_id, new, limit=limit)


def rehearse(session: Session, tenant_id: UUID) -> None:
    """Execute what `register` does about new servers; register none."""
    register(session, tenant_id, [], limit=0)
    _register_new(session, tenant_id, [], limit=0)


def _register_new(session: Session, tenant_id: UUID, new: Sequence[UUID], *, limit: int) -> None:
    counting = {"tenant_id": tenant_id, "most": limit + 1}
    _, known, ((count,),) = statements.fetch_all(
        session,
        [
            Query(HOLD_ONE_OF, {"lock": Lock.DESTINATIONS, "of": str(tenant_id)}),
            Query(_KNOWN, {"ids": new}),
            Query(_COUNT, counting),
        ],
    )
    new = [each for each in new if each not in dict(known)]
    if new and count + len(new) > limit:
        raise DestinationLimitError(
            f"Your webhooks have {count:,} destinations and this request adds {len(new):,}. Limit: {limit:,}"
            " servers that requests named in the last hour or that have waiting events.",
            limit=limit,
            remaining=limit - count,
            retry_after_seconds=60,
        )
    statements.fetch(session, _REGISTER, {"tenant_id": tenant_id, "ids": new})


def schedule_new(session: Session, freed: Collection[UUID], *, now: datetime) -> Sequence[NewDispatch]:
    """Schedule destinations with new dispatches, and those with room again.

    Args:
        session: holds the lock of claims.
        freed: destinations whose exchanges have ended.
        now: the database's time.
    """
    asked = {"freed": list(freed), "now": now, "soon": now + RECHECK}
    found = session.execute(_UNNOTICED, asked | {"most": _MAX_NOTICED, "least": _MIN_NOTICED}).all()
    if not found:
        return []
    first: dict[UUID, tuple[UUID, UUID, datetime]] = {}
    for row in found:
        tenant_id, destination_id, due = row.tenant_id, row.destination_id, row.next_attempt_at
        server = server_id(tenant_id, row.endpoint_url) if row.endpoint_url else destination_id
        _, _, earliest = first.get(destination_id, (None, None, due))
        first[destination_id] = (tenant_id, server, min(due, earliest))
    ids = sorted(first)
    columns = zip(*(first[each] for each in ids), strict=True)
    names = ("tenant_id", "server_id", "due")
    session.execute(
        _SCHEDULE, {"id": ids} | {name: list(each) for name, each in zip(names, columns, strict=True)}
    )
    return [NewDispatch(row.id, row.next_attempt_at) for row in found]


def update_due_times(session: Session, new: Sequence[NewDispatch], visited: Mapping[UUID, datetime]) -> None:
    """Set when destinations are due next, after a claim took what it wanted.

    Args:
        session: holds the lock of claims.
        new: dispatches that these times cover from now on, if they still wait.
        visited: destinations that the claim considered, each due with its first dispatch but not before this
            time.
    """
    if not new and not visited:
        return
    ids = sorted(visited)
    asked = {"ids": [each.id for each in new], "times": [each.next_attempt_at for each in new]}
    session.execute(
        _UPDATE_DUE_TIMES, asked | {"visited": ids, "not_before": [visited[each] for each in ids]}
    )


def wake(session: Session, destination_id: UUID) -> None:
    """Make the next claim consider a destination whose pause ends early."""
    session.execute(_WAKE, {"id": destination_id})


def find_unscheduled(session: Session, *, after: UUID, page: int = 10_000) -> UUID | None:
    """Make claims notice dispatches whose destinations have no due time or a late one.

    Processes of the previous release leave such dispatches: they do not know destinations.

    Returns: where the next page begins; None: this was the last.
    """
    found: UUID | None = session.scalar(_FORGOTTEN, {"after": after, "page": page})
    return found


def remove_idle(session: Session, *, before: datetime, limit: int = 1000) -> int:
    """Remove destinations with no dispatches, not named since; return how many."""
    return len(session.scalars(_IDLE, {"before": before, "limit": limit}).all())
