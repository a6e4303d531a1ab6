"""The service worker's rounds over all kinds of trees: short transactions, any number of workers."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Final

from sqlalchemy.orm import Session, sessionmaker

from jobs import summaries
from jobs.database import database_now, transaction
from jobs.doorbell import SERVICE
from jobs.extractions.settling import FindFault, concluding
from jobs.extractions.shape import SHAPES
from jobs.questions.settling import ready_to_settle, settle
from jobs.summaries.planning import Planning, PlanningTools
from worker.duties import Duty, ServiceContext
from worker.rounds import FailingRows, is_disconnect, move_each, move_set

Sessions = sessionmaker[Session]

# Summaries per round: engines can start on the first ones while the others are chunked.
_PLANNED_AT_ONCE: Final = 20


def duties(context: ServiceContext) -> list[Duty]:
    """List the duties of summaries."""
    settings, every, rounds = (
        context.settings,
        context.settings.maintenance,
        SummaryMaintenance(context.sessions),
    )
    work = Planning(PlanningTools.of(settings, context.counter), SHAPES, context.lease)
    retention, is_stopping = timedelta(days=settings.jobs.retention_days), context.is_stopping

    def plan_some() -> int:
        tried = context.runner.run_some(work, limit=_PLANNED_AT_ONCE, is_stopping=is_stopping)
        if len(tried) == _PLANNED_AT_ONCE:
            context.wake("summaries")
        return len(tried)

    stop = partial(rounds.stop, is_stopping=is_stopping)
    prune = partial(rounds.prune, retention=retention, is_stopping=is_stopping)
    return [
        Duty("summaries", plan_some, every.summary_seconds, wakes=("prepare", "deliver"), rung_by=(SERVICE,)),
        Duty("summaries", stop, every.summary_seconds, wakes=("deliver", "summaries")),
        Duty(
            "answers",
            partial(rounds.settle, find_fault=context.find_fault, is_stopping=is_stopping),
            every.summary_seconds,
            wakes=("deliver",),
            rung_by=(SERVICE,),
        ),
        Duty("expire", rounds.expire, every.expire_seconds),
        Duty("prune", prune, every.prune_seconds),
    ]


class SummaryMaintenance:
    """Maintenance rounds over all tenants' summaries, which skip rows that keep failing."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._stopping = FailingRows("summaries-stop")
        self._overdue = FailingRows("summaries-expire")
        self._old = FailingRows("summaries-prune")
        self._unsettled = FailingRows("answers-settle")

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
                self._stopping.skip(summary_id, error)
        return num_stopped

    def settle(self, *, find_fault: FindFault, is_stopping: Callable[[], bool]) -> None:
        """Store what documents say to those whose jobs have ended, one document at a time."""
        move = partial(settle, concluding=concluding(find_fault))
        move_each(self._sessions, self._unsettled, ready_to_settle(), move, is_stopping=is_stopping)

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
        old, move = summaries.ended_before(before), partial(summaries.prune, before=before)
        move_each(self._sessions, self._old, old, move, is_stopping=is_stopping)
