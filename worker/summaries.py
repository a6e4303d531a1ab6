"""The service worker's rounds over summaries: short transactions, any number of workers at once."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from uuid import UUID

from sqlalchemy.orm import Session, sessionmaker

from jobs import summaries
from jobs.database import database_now, transaction
from jobs.summaries.planning import Planning
from worker.rounds import Poisoned, is_disconnect, move_each, move_set
from worker.turns import TurnTaker

Sessions = sessionmaker[Session]


def plan(taker: TurnTaker, work: Planning, *, limit: int, is_stopping: Callable[[], bool]) -> int:
    """Plan summaries whose documents are ready.

    Returns:
        How many were tried, at most `limit`. Postponed ones count too: while a quota is full, the caller's
        other work must go on.
    """
    for num_tried in range(limit):
        if is_stopping() or taker.take(work) is None:
            return num_tried
    return limit


class SummaryRounds:
    """Maintenance rounds over all tenants' summaries, which skip rows that keep failing."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._stopping = Poisoned("summaries-stop")
        self._overdue = Poisoned("summaries-expire")
        self._old = Poisoned("summaries-prune")

    def stop(self, *, is_stopping: Callable[[], bool]) -> int:
        """Cancel the jobs of summaries that end early, or ask running ones to stop. Returns how many."""
        with transaction(self._sessions) as session:
            found = summaries.find_stopping(session, without=self._stopping.ids())
        num_stopped = 0
        for summary_id, tenant_id in found:
            if is_stopping():
                break
            try:
                with transaction(self._sessions) as session:
                    num_stopped += summaries.stop_jobs(session, summary_id, tenant_id=tenant_id)
            except Exception as error:
                if is_disconnect(error):
                    raise
                self._stopping.put(summary_id, error)
        return num_stopped

    def expire(self) -> int:
        """Expire summaries that were not planned in time. Returns how many."""
        with transaction(self._sessions) as session:
            now = database_now(session)
        move = partial(summaries.expire, now=now)
        return sum(move_set(self._sessions, self._overdue, summaries.overdue(now), move, limit=100))

    def prune(self, *, retention: timedelta, is_stopping: Callable[[], bool]) -> None:
        """Remove summaries past their retention, together with their jobs."""
        with transaction(self._sessions) as session:
            before = database_now(session) - retention

        def move(session: Session, summary_ids: Sequence[UUID]) -> int:
            return summaries.prune(session, before=before, only=summary_ids)

        old = summaries.ended_before(before)
        move_each(self._sessions, self._old, old, move, is_stopping=is_stopping)
