"""Draining reservations: their requests may linger in the engine, so they stay until those have ended."""

import time
from collections.abc import Callable, Sequence
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
# Between two readings that prove an end: an end that the engine has counted has reached us by then.
_APART_SECONDS: Final = 1.0
_KEPT_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class OpenRequests:
    """The requests of this process whose ends have not reached it.

    Attributes:
        at: monotonic time of the look.
        inside: those that the engine certainly has: the lease and the monotonic time of sending of each.
        num_sent: how many were sent; of the others it is not certain whether they have arrived.
    """

    at: float
    inside: frozenset[tuple[UUID, float]] = frozenset()
    num_sent: int = 0


@dataclass(frozen=True, slots=True)
class _Reservations:
    """The reservations on the engine at one moment; none while none is draining."""

    now: datetime
    has_held: bool
    draining: list[Reservation]

    @property
    def lease_ids(self) -> frozenset[UUID]:
        return frozenset(each.lease_id for each in self.draining)

    def oldest_drain(self) -> timedelta:
        return max(self.now - (each.draining_since or self.now) for each in self.draining)


@dataclass(frozen=True, slots=True)
class _Reading:
    """A moment at which the engine had no other requests than these of ours, or not even all of them."""

    at: float
    num_inside: int
    ours: frozenset[tuple[UUID, float]]
    draining: frozenset[UUID]


class DrainMonitor:
    """The monitor of one engine's draining reservations; it decides when to delete them. Used by one thread.

    It compares the engine's count of requests with those of ours that are inside for certain, in two readings
    a second apart. If neither shows another request, what was draining at the first has ended: a request of
    ours that was inside then, and whose stream had not ended by the second, was counted. A reading that ours
    cannot explain restarts the proof, so another client only delays it. Blocks prove nothing: reservations
    are upper bounds, and shared prefixes count once.

    Without gauges, or when they are not conclusive, a bounded time must pass and the engine must answer a
    one-token request.
    """

    def __init__(
        self,
        sessions: sessionmaker[Session],
        engine_name: str,
        *,
        limit: Callable[[Reservation], timedelta],
        answers: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Set up without readings.

        Args:
            sessions: of the database.
            engine_name: the engine.
            limit: returns how long to drain until an answer is proof enough.
            answers: probes the engine.
            clock: monotonic seconds.
        """
        self._sessions = sessions
        self._engine_name = engine_name
        self._limit = limit
        self._answers = answers
        self._clock = clock
        self._readings: list[_Reading] = []
        self._is_waiting = False
        self._asked_at = float("-inf")

    @property
    def is_waiting(self) -> bool:
        """True if something was draining at the last check, and is yet."""
        return self._is_waiting

    def check(self, gauges: Gauges | None, ours: OpenRequests) -> int:
        """Delete the reservations whose requests have certainly ended.

        Args:
            gauges: read just before the call; None if the engine has none.
            ours: of this process when the gauges were read. A reservation alone proves no request: its job
                may wait for blocks, load its prompt, or be over.

        Returns:
            How many were deleted.
        """
        reserved = self._read()
        self._is_waiting = bool(reserved.draining)
        if not self._is_waiting:
            self._readings = []
            return 0
        drained = self._by_gauges(reserved, gauges, ours) or self._by_answer(reserved, gauges)
        if not drained:
            return 0
        with transaction(self._sessions) as session:
            num_drained = reservations.drained(session, drained)
        telemetry.logger().info(telemetry.RESERVATION_DRAINED, num_drained=num_drained)
        return num_drained

    def _read(self) -> _Reservations:
        with transaction(self._sessions) as session:
            here = select(Reservation).where(Reservation.engine_name == self._engine_name)
            drains = here.where(Reservation.state == "draining").exists()
            rows = session.scalars(here).all() if session.scalar(select(drains)) else []
            return _Reservations(
                now=database_now(session),
                has_held=any(row.state == "held" for row in rows),
                draining=[row for row in rows if row.state == "draining"],
            )

    def _by_gauges(
        self, reserved: _Reservations, gauges: Gauges | None, ours: OpenRequests
    ) -> Sequence[UUID]:
        # When the gauges were read, not when the database answered.
        now = ours.at
        self._readings = [each for each in self._readings if now - each.at < _KEPT_SECONDS]
        # A request that waits inside, even one preempted there, can still run: it counts.
        if gauges is None or gauges.num_inside > max(len(ours.inside), ours.num_sent):
            self._readings = []
            return []
        if gauges.num_inside > len(ours.inside):  # one of ours may have just arrived: this shows nothing
            return []
        if gauges.num_inside < len(ours.inside) and 0 < gauges.max_requests < len(ours.inside):
            return []  # it does not count those that wait for a slot: another request may have that slot
        drained = set[UUID]()
        for first in self._readings:
            if now - first.at >= _APART_SECONDS and first.num_inside <= len(first.ours & ours.inside):
                drained |= first.draining & reserved.lease_ids
        self._readings.append(_Reading(now, gauges.num_inside, ours.inside, reserved.lease_ids))
        return [*drained]

    def _by_answer(self, reserved: _Reservations, gauges: Gauges | None) -> list[UUID]:
        """Return the overdue reservations if the engine answers. A probe also refreshes its gauges."""
        overdue = [
            row.lease_id
            for row in reserved.draining
            if row.draining_since and reserved.now - row.draining_since > self._limit(row)
        ]
        is_stale = gauges is not None and not reserved.has_held and reserved.oldest_drain() > _STALE
        if not overdue and not (is_stale and not self._readings):
            return []
        if self._clock() - self._asked_at < _CANARY_INTERVAL_SECONDS:
            return []
        self._asked_at = self._clock()
        return overdue if self._answers() else []
