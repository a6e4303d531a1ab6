"""Bookings whose requests may linger in the engine: they go once the engine is known to be done with them."""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker

from jobs import telemetry
from jobs.database import database_now, transaction
from jobs.engines import reservations
from jobs.models import Reservation
from worker.engine.metrics import Gauges

# Gauges that look wrong while nothing runs may be old: a real engine refreshes them only while it iterates.
_STALE: Final = timedelta(seconds=3)
_CANARY_INTERVAL_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class _Bookings:
    """What is booked on the engine at one moment."""

    now: datetime
    held: list[Reservation]
    draining: list[Reservation]

    def oldest_drain(self) -> timedelta:
        return max(self.now - (each.draining_since or self.now) for each in self.draining)


class Drains:
    """Decides when draining bookings of one engine may go. Used by one thread.

    Compares the engine's count of active requests with those that certainly generate for us: when it shows no
    other in two looks a second apart, the draining ones have ended. Without gauges, or when they do not
    settle it, a bounded time must pass and the engine must answer a request of one token.
    """

    def __init__(
        self,
        sessions: sessionmaker[Session],
        engine_name: str,
        *,
        limit: Callable[[Reservation], timedelta],
        answers: Callable[[], bool],
    ) -> None:
        """Args: limit: of a booking; after it an answer is enough. answers: whether the engine gives one."""
        self._sessions = sessions
        self._engine_name = engine_name
        self._limit = limit
        self._answers = answers
        self._suspects: frozenset[UUID] = frozenset()
        self._asked_at = float("-inf")

    def look(self, gauges: Gauges | None, *, generating: Collection[UUID]) -> None:
        """Delete the bookings whose requests are known to have ended.

        Args:
            gauges: read just before; None: there are none.
            generating: leases of this process whose requests generated when the gauges were read. A booking
                alone proves no request: its job may wait for blocks, still load its prompt, or have ended.
        """
        # Read after the gauges: what ended in between makes the engine look busier, never idler, than it is.
        bookings = self._read()
        if not bookings.draining:
            self._suspects = frozenset()
            return
        drained = self._by_gauges(bookings, gauges, generating) or self._by_answer(bookings, gauges)
        if drained:
            with transaction(self._sessions) as session:
                num_drained = reservations.drained(session, drained)
            telemetry.logger().info(telemetry.RESERVATION_DRAINED, num_drained=num_drained)

    def _read(self) -> _Bookings:
        with transaction(self._sessions) as session:
            rows = session.scalars(
                select(Reservation).where(Reservation.engine_name == self._engine_name)
            ).all()
            return _Bookings(
                now=database_now(session),
                held=[row for row in rows if row.state == "held"],
                draining=[row for row in rows if row.state == "draining"],
            )

    def _by_gauges(
        self, bookings: _Bookings, gauges: Gauges | None, generating: Collection[UUID]
    ) -> list[UUID]:
        certain = sum(not row.is_waiting and row.lease_id in generating for row in bookings.held)
        draining = frozenset(row.lease_id for row in bookings.draining)
        if gauges is None or gauges.active_requests > certain:
            self._suspects = frozenset()
            return []
        seen_twice = draining & self._suspects
        self._suspects = draining
        return list(seen_twice)

    def _by_answer(self, bookings: _Bookings, gauges: Gauges | None) -> list[UUID]:
        """Those that have drained for long enough, if the engine answers; that also refreshes its gauges."""
        overdue = [
            row.lease_id
            for row in bookings.draining
            if row.draining_since and bookings.now - row.draining_since > self._limit(row)
        ]
        is_stale = gauges is not None and not bookings.held and bookings.oldest_drain() > _STALE
        if not overdue and not (is_stale and not self._suspects):
            return []
        if time.monotonic() - self._asked_at < _CANARY_INTERVAL_SECONDS:
            return []
        self._asked_at = time.monotonic()
        return overdue if self._answers() else []
