"""The maintenance rounds of the queue, each bounded; any number of service workers may run them at once."""

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Final, TypeVar

from sqlalchemy import literal_column, select
from sqlalchemy.orm import Session, sessionmaker

from jobs import audit, deletion, fitting, lifecycle, summaries
from jobs.database import database_now, transaction
from jobs.doorbell import SERVICE
from jobs.engines import registry, served_tokens
from jobs.models import Job
from jobs.preparation import Counting
from jobs.settings import JobSettings
from jobs.sharing import ends
from jobs.states import TERMINAL, JobState
from jobs.tenants import sign_ins, stored_bytes, usage
from jobs.webhooks import endpoints
from worker.duties import Duty, ServiceContext
from worker.rescue import Rescuer
from worker.rounds import FailingRows, do_each, move_set

Sessions = sessionmaker[Session]
T = TypeVar("T")

# A ready engine is seen every few seconds.
_ENGINE_IS_GONE: Final = timedelta(days=1)
_MAX_NOTES: Final = 5000  # in one transaction
# What finishes the work of requests that would have taken too long.
_SWEEPS: Final = (endpoints.sweep, endpoints.sweep_disabled, summaries.sweep)


def duties(context: ServiceContext) -> list[Duty]:
    """List the duties of the queue. While there is work, the next round follows at once."""
    settings, every, is_stopping = context.settings, context.settings.maintenance, context.is_stopping
    rounds, sessions = JobMaintenance(context.sessions), context.sessions
    work = Counting(context.counter, registry.configured_capacity(settings.engine), context.lease)

    def count_some() -> bool:
        counted = context.runner.run_set(work)
        if counted is None:
            return False
        if counted.num_together or any(job.state == JobState.QUEUED for job in counted.others):
            context.wake("inference")  # engines can start on these while the others are counted
        if any(job.state in TERMINAL and job.webhook_url is not None for job in counted.others):
            context.wake("deliver")
        return True

    rescue = Rescuer(sessions, max_rescues=settings.jobs.max_rescues).rescue
    sweep, ring = partial(sweep_deleted, sessions), partial(has_queued, sessions)
    prune = partial(rounds.prune, settings.jobs, is_stopping=is_stopping)
    return [
        Duty("prepare", count_some, every.prepare_seconds, wakes=("prepare",), rung_by=(SERVICE,)),
        Duty("rescue", rescue, every.rescue_seconds, wakes=("inference",)),
        Duty("expire", rounds.expire, every.expire_seconds, wakes=("expire",)),
        Duty("twins", rounds.settle_twins, every.prepare_seconds, wakes=("inference", "deliver", "prepare")),
        Duty("expire", rounds.reject_misfits, every.expire_seconds),
        Duty("expire", sweep, every.expire_seconds, wakes=("expire",)),
        Duty("expire", rounds.add_up_stored, every.expire_seconds, wakes=("expire",)),
        Duty("doorbell", ring, every.doorbell_seconds, wakes=("inference",)),
        Duty("prune", prune, every.prune_seconds),
    ]


class JobMaintenance:
    """Maintenance rounds over all tenants' jobs, which skip rows that keep failing."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._overdue = FailingRows("expire")
        self._twins = FailingRows("twins")
        self._misfits = FailingRows("misfits")
        self._old = FailingRows("prune")
        self._notes = FailingRows("usage")
        self._stored = FailingRows("stored")

    def expire(self) -> int:
        """Expire jobs whose window is over, or ask their workers to stop them. Returns how many."""
        now = self._now()
        move = partial(lifecycle.expire, now=now)
        return sum(move_set(self._sessions, self._overdue, lifecycle.overdue(now), move, limit=1000))

    def settle_twins(self) -> int:
        """End twins whose leaders have ended, or let one of them run. Returns how many it moved."""
        with transaction(self._sessions) as session:
            if not session.scalar(ends.any_twin()):
                return 0
        alone = ends.left_alone()
        return sum(move_set(self._sessions, self._twins, alone, ends.settle, limit=ends.MOST_SETTLED))

    def reject_misfits(self) -> list[Job]:
        """Fail queued jobs that no longer fit any engine. Returns the jobs that failed."""
        with transaction(self._sessions) as session:
            rows = fitting.misfits(registry.registered_capacities(session))
        moved = move_set(self._sessions, self._misfits, rows, fitting.reject_misfits, limit=1000)
        return [job for jobs in moved for job in jobs]

    def add_up_stored(self) -> bool:
        """Add up notes of what tenants keep. Returns true if there may be more."""
        moved = move_set(
            self._sessions, self._stored, stored_bytes.unsummed(), stored_bytes.add_up, limit=_MAX_NOTES
        )
        return sum(moved) == _MAX_NOTES

    def prune(
        self, settings: JobSettings, *, is_stopping: Callable[[], bool] = lambda: False
    ) -> dict[str, int]:
        """Remove all rows past their retention, as far as there is time. Returns their number by kind."""
        now = self._now()
        kept_since = now - timedelta(days=settings.retention_days)
        keys_since = now - timedelta(hours=settings.idempotency_hours)
        audit_since = now - timedelta(days=settings.audit_retention_days)
        old, prune_jobs = deletion.ended_before(kept_since), partial(deletion.prune_jobs, before=kept_since)
        notes = usage.unsummed()
        rounds: dict[str, Callable[[], int]] = {
            "jobs": lambda: sum(move_set(self._sessions, self._old, old, prune_jobs, limit=500)),
            "events": partial(self._in_one, partial(deletion.prune_events, before=kept_since)),
            "usage_entries": lambda: sum(
                move_set(self._sessions, self._notes, notes, usage.add_up, limit=_MAX_NOTES)
            ),
            "idempotency_keys": partial(
                self._in_one, partial(deletion.prune_idempotency_keys, before=keys_since)
            ),
            "audit_entries": partial(self._in_one, partial(audit.prune, before=audit_since)),
            "sign_ins": partial(self._in_one, partial(sign_ins.prune, now=now)),
            "account_shards": partial(
                self._in_one, partial(served_tokens.fold, before=now - _ENGINE_IS_GONE)
            ),
        }
        removed = dict.fromkeys(rounds, 0)

        def run(name: str) -> None:
            while not is_stopping() and (num := rounds[name]()):
                removed[name] += num

        do_each([partial(run, name) for name in rounds])
        return removed

    def _in_one(self, step: Callable[[Session], T]) -> T:
        with transaction(self._sessions) as session:
            return step(session)

    def _now(self) -> datetime:
        return self._in_one(database_now)


def has_queued(sessions: Sessions) -> bool:
    """Return True if a job waits for an engine."""
    waiting = select(Job.id).where(Job.state == literal_column("'queued'")).limit(1)
    with transaction(sessions) as session:
        return session.scalar(waiting) is not None


def sweep_deleted(sessions: Sessions) -> int:
    """Finish some of what was too much for the request that began it. Returns the number of rows."""
    removed: list[int] = []

    def run(sweep: Callable[[Session], int]) -> None:
        with transaction(sessions) as session:
            removed.append(sweep(session))

    do_each([partial(run, sweep) for sweep in _SWEEPS])
    return sum(removed)
