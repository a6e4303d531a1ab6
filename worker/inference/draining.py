"""Draining reservations: their requests may linger in the engine, so they stay until those have ended."""

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
from worker.engine.gauges import Gauges

# Gauges that look wrong while nothing runs may be stale: a real engine refreshes them only while it iterates.
_STALE: Final = timedelta(seconds=3)
_CANARY_INTERVAL_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class _Reserved:
    """The reservations on the engine at one moment; none while none is draining."""

    now: datetime
    held: list[Reservation]
    draining: list[Reservation]

    def oldest_drain(self) -> timedelta:
        return max(self.now - (each.draining_since or self.now) for each in self.draining)


class DrainMonitor:
    """The monitor of one engine's draining reservations; it decides when to delete them. Used by one thread.

    Compares the engine's count of requests with those that certainly generate for us: if two readings a
    second apart show no others, the draining ones have ended. Without gauges, or when they are not
    conclusive, a bounded time must pass and the engine must answer a one-token request.
    """

    def __init__(
        self,
        sessions: sessionmaker[Session],
        engine_name: str,
        *,
        limit: Callable[[Reservation], timedelta],
        answers: Callable[[], bool],
    ) -> None:
        """Args: limit: how long to drain until an answer is proof enough. answers: probes the engine."""
        self._sessions = sessions
        self._engine_name = engine_name
        self._limit = limit
        self._answers = answers
        self._suspects: frozenset[UUID] = frozenset()
        self._asked_at = float("-inf")

    def check(self, gauges: Gauges | None, *, generating: Collection[UUID]) -> None:
        """Delete the reservations whose requests have certainly ended.

        Args:
            gauges: read just before the call; None if the engine has none.
            generating: leases of this process whose requests were generating when the gauges were read. A
                reservation alone proves no request: its job may wait for blocks, load its prompt, or be over.
        """
        # Read after the gauges: a request that ended in between makes the engine look busier, never idler.
        reserved = self._read()
        if not reserved.draining:
            self._suspects = frozenset()
            return
        drained = self._by_gauges(reserved, gauges, generating) or self._by_answer(reserved, gauges)
        if drained:
            with transaction(self._sessions) as session:
                num_drained = reservations.drained(session, drained)
            telemetry.logger().info(telemetry.RESERVATION_DRAINED, num_drained=num_drained)

    def _read(self) -> _Reserved:
        with transaction(self._sessions) as session:
            here = select(Reservation).where(Reservation.engine_name == self._engine_name)
            drains = here.where(Reservation.state == "draining").exists()
            rows = session.scalars(here).all() if session.scalar(select(drains)) else []
            return _Reserved(
                now=database_now(session),
                held=[row for row in rows if row.state == "held"],
                draining=[row for row in rows if row.state == "draining"],
            )

    def _by_gauges(
        self, reserved: _Reserved, gauges: Gauges | None, generating: Collection[UUID]
    ) -> list[UUID]:
        certain = sum(not row.is_waiting and row.lease_id in generating for row in reserved.held)
        draining = frozenset(row.lease_id for row in reserved.draining)
        # A request that waits inside, even one preempted there, can still run: it has not ended.
        if gauges is None or gauges.num_inside > certain:
            self._suspects = frozenset()
            return []
        seen_twice = draining & self._suspects
        self._suspects = draining
        return list(seen_twice)

    def _by_answer(self, reserved: _Reserved, gauges: Gauges | None) -> list[UUID]:
        """Return the overdue reservations if the engine answers. A probe also refreshes its gauges."""
        overdue = [
            row.lease_id
            for row in reserved.draining
            if row.draining_since and reserved.now - row.draining_since > self._limit(row)
        ]
        is_stale = gauges is not None and not reserved.held and reserved.oldest_drain() > _STALE
        if not overdue and not (is_stale and not self._suspects):
            return []
        if time.monotonic() - self._asked_at < _CANARY_INTERVAL_SECONDS:
            return []
        self._asked_at = time.monotonic()
        return overdue if self._answers() else []
