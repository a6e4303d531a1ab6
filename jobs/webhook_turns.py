"""Whose events are sent next: fair between destinations.

A destination has at most so many exchanges at once. One that failed five times in a row is paused, longer
each time, and then asked with one exchange; until it answers well its other events wait without being tried.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.settings import WebhookSettings

BREAKER_FAILURES: Final = 5  # in a row, until a destination is paused

# First every destination that waits, by jumping through the index; then of each as many as it has room for,
# in turns, so that one with a million events delays nobody.
_CHOOSE: Final = text(f"""
    WITH RECURSIVE waiting (id) AS (
        (SELECT destination_id FROM webhook_dispatches WHERE state = 'pending'
         ORDER BY destination_id LIMIT 1)
        UNION ALL
        SELECT (SELECT d.destination_id FROM webhook_dispatches d
                WHERE d.state = 'pending' AND d.destination_id > waiting.id
                ORDER BY d.destination_id LIMIT 1)
        FROM waiting WHERE waiting.id IS NOT NULL
    ), ready AS (
        SELECT waiting.id,
            CASE WHEN b.num_failures >= {BREAKER_FAILURES} THEN 1 ELSE :at_most END
            - (SELECT count(*) FROM webhook_dispatches s
               WHERE s.state = 'sending' AND s.destination_id = waiting.id) AS room
        FROM waiting LEFT JOIN webhook_breakers b ON b.destination_id = waiting.id
        WHERE waiting.id IS NOT NULL AND (b.paused_until IS NULL OR b.paused_until <= :now)
    )
    SELECT due.id FROM ready CROSS JOIN LATERAL (
        SELECT d.id, d.next_attempt_at, row_number() OVER (ORDER BY d.next_attempt_at) AS turn
        FROM (SELECT id, next_attempt_at FROM webhook_dispatches
              WHERE destination_id = ready.id AND state = 'pending' AND next_attempt_at <= :now
              ORDER BY next_attempt_at LIMIT greatest(ready.room, 0)) d
    ) due ORDER BY due.turn, due.next_attempt_at LIMIT :limit
""")  # noqa: S608  # numbers of ours


def choose(session: Session, settings: WebhookSettings, *, now: datetime, limit: int) -> Sequence[UUID]:
    """Choose up to `limit` dispatches whose time has come, in the order in which they are sent."""
    asked = {"at_most": settings.endpoint_concurrency, "limit": limit, "now": now}
    return session.scalars(_CHOOSE, asked).all()
