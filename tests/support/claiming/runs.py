"""Runs as a worker's slots make them, of jobs that a database has or has not."""

import time
from datetime import UTC, datetime
from typing import Any

from jobs.ids import uuid7
from jobs.models import DEFAULT_TENANT
from jobs.queries import QueuedJob
from jobs.starting import Claim
from jobs.states import Lane
from jobs.transitions import Lease
from worker.inference.live_output import OutputPublisher
from worker.inference.run import Run
from worker.inference.text_answer import AnyAnswer


class _Silent:
    """Takes what a run logs."""

    def info(self, event: str, **_: object) -> None:
        """Forget it."""


def stray_run(*, seconds: float = 600) -> Run:
    """A run of a job that no database has, with a lease for so long."""
    given: dict[str, Any] = dict.fromkeys(QueuedJob._fields)
    given |= {"id": uuid7(), "tenant_id": DEFAULT_TENANT, "lane": Lane.BATCH, "created_at": datetime.now(UTC)}
    job = QueuedJob(**given)
    return Run(Claim(Lease(job.id, uuid7()), job, blocks=1, output_tokens=1), time.monotonic() + seconds)


def begin(run: Run, answer: AnyAnswer) -> Run:
    """Begin the run with this answer; its log and its live output are dropped."""
    publisher = OutputPublisher(lambda *_: None, run.lease.job_id, answer, interval=0)
    run.begin(answer, publisher, _Silent())  # type: ignore[arg-type]  # all that it calls
    return run
