"""A request leaves the process after the commit of the tick that claimed its job, and not before."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import UUID

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session, sessionmaker

from jobs.database import transaction
from jobs.models import Reservation
from jobs.models.attempt import Attempt
from jobs.prompts.store import CountedPrompt
from jobs.queries import QueuedJob
from jobs.settings import Settings
from support import eventually
from worker.engine.client import EngineModel
from worker.inference.requests import RequestMaker
from worker.inference.run import Run
from worker.inference.run_stream import RunStream
from worker.inference.slots import Slots
from worker.inference.text_answer import AnyAnswer
from worker_support import Queue, running_worker


@contextmanager
def failing_commits(sessions: sessionmaker[Session], *, every: int) -> Iterator[None]:
    """Let the commit of a claim fail now and then, after all its statements."""
    body = f"""
        BEGIN
            IF nextval('num_commits') % {every} = 0 THEN
                RAISE EXCEPTION 'not now' USING ERRCODE = 'serialization_failure';
            END IF;
            RETURN NEW;
        END
    """
    with transaction(sessions) as session:
        session.execute(text("CREATE SEQUENCE num_commits"))
        session.execute(text(f"CREATE FUNCTION fails() RETURNS trigger LANGUAGE plpgsql AS $${body}$$"))
        session.execute(
            text(
                "CREATE CONSTRAINT TRIGGER fails AFTER INSERT ON reservations DEFERRABLE INITIALLY DEFERRED"
                " FOR EACH ROW EXECUTE FUNCTION fails()"
            )
        )
    yield
    with transaction(sessions) as session:
        session.execute(text("DROP FUNCTION fails CASCADE"))
        session.execute(text("DROP SEQUENCE num_commits"))


def test_nothing_is_sent_before_its_claim_commits(
    queue: Queue, feeding: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, started, is_booked = list[UUID](), list[RunStream](), list[bool]()
    open_stream, start = Slots._open, RunStream.start

    async def open_noted(
        slots: Slots, run: Run, prompt: CountedPrompt, model: EngineModel, *, until: int
    ) -> RunStream:
        with queue.sessions() as session:  # another one than that of the claim
            is_booked.append(session.get(Reservation, run.lease.lease_id) is not None)
        opened.append(run.claim.job.id)
        return await open_stream(slots, run, prompt, model, until=until)

    def start_noted(stream: RunStream) -> None:
        started.append(stream)
        start(stream)

    monkeypatch.setattr(Slots, "_open", open_noted)
    monkeypatch.setattr(RunStream, "start", start_noted)
    with failing_commits(queue.sessions, every=5), running_worker(feeding(), queue.tokenizer):
        asked = [queue.submit(f"Number {number}. [[tokens=2]]", max_tokens=8) for number in range(40)]
        jobs = [queue.ended(each) for each in asked]
    assert all(is_booked)
    assert len(started) == len(opened), "no request is sent elsewhere"
    assert sorted(opened) == sorted(asked), "of a claim that failed nothing was sent"
    assert {(job.state, job.attempt, job.num_rescues) for job in jobs} == {("completed", 0, 0)}
    assert queue.reservations() == []


def test_the_times_of_short_jobs_are_in_order(queue: Queue, feeding: Callable[..., Settings]) -> None:
    asked = [queue.submit(f"Number {number}. [[tokens=2]]", max_tokens=8) for number in range(60)]
    with running_worker(feeding(), queue.tokenizer):
        jobs = [queue.ended(each) for each in asked]
    assert {(job.state, job.attempt, job.num_rescues) for job in jobs} == {("completed", 0, 0)}
    for job in jobs:
        assert job.started_at is not None
        assert job.first_token_at is not None
        assert job.finalized_at is not None
        assert job.created_at <= job.started_at <= job.first_token_at <= job.finalized_at
    with queue.sessions() as session:
        tries = session.scalars(select(Attempt)).all()
    assert sorted(each.job_id for each in tries) == sorted(asked)
    assert all(each.started_at <= each.answered_at <= each.ended_at for each in tries if each.answered_at)


def test_the_lease_of_a_run_that_cannot_begin_runs_out(
    queue: Queue, feeding: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[UUID]()

    def fail(_requests: RequestMaker, job: QueuedJob, _model: EngineModel) -> AnyAnswer:
        made.append(job.id)
        raise MemoryError

    monkeypatch.setattr(RequestMaker, "empty_answer", fail)
    with running_worker(feeding(), queue.tokenizer) as worker:
        job_id = queue.submit("A question. [[tokens=20]]")
        queue.when(job_id, lambda job: job.state == "running")
        eventually(lambda: not worker.keeper.runs())  # nobody renews its lease, so it can be rescued
    assert made == [job_id]
