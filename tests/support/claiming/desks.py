"""Hand ends of runs to a desk, and let it tick."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from uuid import UUID

from sqlalchemy.orm import Session, sessionmaker

from jobs.checkpoints import Output
from jobs.finishing import StoredEnd
from jobs.models import Job
from jobs.starting import Claim
from jobs.states import FinishReason, StopReason
from support import output_of
from worker.inference.desk import Desk
from worker.inference.outcome import Finished, RunEnd, Stopped
from worker.inference.run import Run

SLOTS = 4
STOPPED = RunEnd(Finished(FinishReason.STOP), engine_is_done=True)
RELEASED = RunEnd(Stopped(StopReason.SHUTDOWN), engine_is_done=True)


def hand_in(
    desk: Desk,
    claim: Claim,
    output: Output | None = None,
    end: RunEnd = STOPPED,
    *,
    tree_id: UUID | None = None,
) -> "Future[StoredEnd]":
    claim = replace(claim, job=claim.job._replace(summary_id=tree_id))
    return desk.hand_in(Run(claim, float("inf")), end, output or output_of("x"))


def tick_until_done(desk: Desk, ends: Sequence["Future[StoredEnd]"]) -> None:
    """Tick until these ends are stored: on a slow machine one tick has no time for all of them."""
    while not all(each.done() for each in ends):
        desk.tick(None)


def state_of(sessions: sessionmaker[Session], claim: Claim) -> str:
    with sessions() as session:
        return session.get_one(Job, claim.lease.job_id).state
