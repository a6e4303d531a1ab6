"""Summaries as a service worker moves them on: short transactions, any number of workers at once."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial

from sqlalchemy.orm import Session, sessionmaker

from jobs import summaries as verbs
from jobs.database import database_now, transaction
from jobs.summary_planning import Planning
from worker.turns import TurnTaker

Sessions = sessionmaker[Session]


def plan(taker: TurnTaker, work: Planning, *, limit: int, is_stopping: Callable[[], bool]) -> int:
    """Plan summaries whose documents are ready.

    Returns:
        How many were looked at, `limit` at most. Those that are put off count too: while a quota is full the
        caller's other work must go on.
    """
    for num_looked_at in range(limit):
        if is_stopping() or taker.take(work) is None:
            return num_looked_at
    return limit


def stop(sessions: Sessions, *, is_stopping: Callable[[], bool]) -> int:
    """Jobs of summaries that are to end early are cancelled or asked to stop; how many were."""
    with transaction(sessions) as session:
        found = verbs.find_stopping(session)
    num_stopped = 0
    for summary_id, tenant_id in found:
        if is_stopping():
            break
        with transaction(sessions) as session:
            num_stopped += verbs.stop_jobs(session, summary_id, tenant_id=tenant_id)
    return num_stopped


def expire(sessions: Sessions) -> int:
    """Summaries that were not planned in time have expired; how many."""
    with transaction(sessions) as session:
        return verbs.expire(session, now=database_now(session))


def prune(sessions: Sessions, *, retention: timedelta, is_stopping: Callable[[], bool]) -> None:
    """Summaries past their retention are gone with their jobs."""
    with transaction(sessions) as session:
        remove = partial(verbs.prune, before=database_now(session) - retention)
    while not is_stopping():
        with transaction(sessions) as session:
            if not remove(session):
                break
