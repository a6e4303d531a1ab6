"""Rescues the jobs of workers that fell silent."""

from functools import partial

from sqlalchemy.orm import Session, sessionmaker

from jobs import ids, lifecycle, telemetry
from jobs.database import database_now, transaction
from jobs.models import Job
from worker.rounds import FailingRows, move_set


class Rescuer:
    """Queues jobs again whose leases have run out; skips rows that keep failing. Used by one thread."""

    def __init__(self, sessions: sessionmaker[Session], *, max_rescues: int) -> None:
        """Args: max_rescues: a job that was rescued this often fails."""
        self._sessions = sessions
        self._max_rescues = max_rescues
        self._silent = FailingRows("rescue")

    def rescue(self) -> list[Job]:
        """Queue the jobs of silent workers again, or end those that must not run again. Returns them."""
        with transaction(self._sessions) as session:
            now = database_now(session)
        move = partial(lifecycle.rescue, now=now, max_rescues=self._max_rescues)
        moved = move_set(self._sessions, self._silent, lifecycle.silent_at(now), move, limit=100)
        rescued = [job for jobs in moved for job in jobs]
        for job in rescued:
            telemetry.logger().warning(
                telemetry.JOB_RESCUED,
                job_id=ids.job_id(job.id),
                attempt=job.attempt,
                num_rescues=job.num_rescues,
                **telemetry.in_trace(job.traceparent),
            )
        return rescued
