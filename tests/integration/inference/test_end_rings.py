"""Who is rung when a run has ended: what waits for the end hears of it without a poll."""

import asyncio
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import pytest
from sqlalchemy import update
from sqlalchemy.orm import Session, sessionmaker

from claiming import claims
from claiming.runs import begin
from jobs import doorbell
from jobs.database import transaction
from jobs.ids import uuid7
from jobs.models import Job
from jobs.prompts.tokenizer import Tokenizer
from jobs.settings import Settings
from jobs.starting import Claim
from jobs.states import FinishReason
from support import ENGINE, POLICY, register_engine, submit_one
from worker.inference.answer import Answer
from worker.inference.desk import Desk
from worker.inference.leases import LeaseKeeper
from worker.inference.outcome import Finished, RunEnd
from worker.inference.record import Recorder
from worker.inference.run import Run
from worker.inference.tensors.outputs import OutputFiles

DONE = RunEnd(Finished(FinishReason.STOP), engine_is_done=True)


class Runs:
    """Runs of one worker, whose rings and announcements it keeps."""

    def __init__(self, settings: Settings, sessions: sessionmaker[Session], tokenizer: Tokenizer) -> None:
        self.rings: list[str] = []
        self.announced: list[UUID] = []
        self.keeper = LeaseKeeper(sessions, settings.jobs)
        self.tokenizer = tokenizer
        stopping = threading.Event()
        desk = Desk(settings, sessions, stopping=stopping)
        desk.wake = lambda: desk.tick(None)
        with ThreadPoolExecutor(1) as threads:
            self.recorder = Recorder(
                desk,
                self.keeper,
                self.rings.append,
                lambda _: None,
                threads,
                stopping,
                OutputFiles(sessions),
                self.announce,
            )

    def announce(self, ended: Collection[UUID]) -> None:
        self.announced += ended

    def begin(self, claim: Claim) -> Run:
        run = Run(claim, time.monotonic() + 60)
        self.keeper.hold(run)
        return begin(run, Answer(self.tokenizer, max_tokens=64))

    def end(self, run: Run) -> None:
        run.is_ending = True
        asyncio.run(self.recorder.end(run, DONE))


@pytest.fixture
def runs(sessions: sessionmaker[Session], feeding: Callable[..., Settings], tokenizer: Tokenizer) -> Runs:
    return Runs(feeding(), sessions, tokenizer)


def claimed(sessions: sessionmaker[Session], *batch_ids: UUID | None) -> list[Claim]:
    """One running job of each of these batches."""
    with transaction(sessions) as session:
        register_engine(session)
        for batch_id in batch_ids:
            job = submit_one(session)
            session.execute(update(Job).where(Job.id == job.id).values(batch_id=batch_id))
        found = list(claims.claim_all(session, ENGINE, POLICY).claims)
    return sorted(found, key=lambda claim: claim.job.id)


def test_the_last_line_of_a_batch_that_a_worker_runs_rings_for_the_batch(
    runs: Runs, sessions: sessionmaker[Session]
) -> None:
    batch_id = uuid7()
    first, last, _ = [runs.begin(each) for each in claimed(sessions, batch_id, batch_id, None)]
    runs.end(first)
    assert runs.rings == []
    runs.end(last)
    assert runs.rings == [doorbell.BATCHES]


def test_an_end_whose_lease_is_lost_rings_and_is_announced_as_its_commit_may_have_been_lost(
    runs: Runs, sessions: sessionmaker[Session]
) -> None:
    (claim,) = claimed(sessions, None)
    run = runs.begin(claim)
    with transaction(sessions) as session:
        session.execute(update(Job).where(Job.id == claim.job.id).values(lease_id=uuid7()))
    runs.end(run)
    assert (runs.rings, runs.announced) == ([doorbell.EVENTS], [claim.job.id])


def test_an_end_that_no_webhook_wants_rings_nobody(runs: Runs, sessions: sessionmaker[Session]) -> None:
    (claim,) = claimed(sessions, None)
    runs.end(runs.begin(claim))
    assert (runs.rings, runs.announced) == ([], [])
