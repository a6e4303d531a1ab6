"""A worker makes requests while their claims commit; once it has served, a free slot gets them before."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from uuid import UUID

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from jobs.database import transaction
from jobs.scheduling.starts import Claim
from jobs.settings import Settings
from jobs.starting import StartedJob
from support import PATIENCE, eventually
from worker.engine.client import EngineModel
from worker.inference.dispatcher import Dispatcher
from worker.inference.run_stream import RunStream
from worker.inference.sending.claiming import Claiming
from worker.inference.sending.requests import RequestMaker
from worker.inference.text_answer import AnyAnswer
from worker_support import Queue, running_worker


@contextmanager
def at_commits(sessions: sessionmaker[Session], does: str) -> Iterator[None]:
    """Let this happen as claims are committed, after all their statements."""
    with transaction(sessions) as session:
        session.execute(text("CREATE SEQUENCE num_commits"))
        body = f"BEGIN {does}; RETURN NEW; END"
        session.execute(text(f"CREATE FUNCTION does() RETURNS trigger LANGUAGE plpgsql AS $${body}$$"))
        session.execute(
            text(
                "CREATE CONSTRAINT TRIGGER does AFTER INSERT ON reservations DEFERRABLE INITIALLY DEFERRED"
                " FOR EACH ROW EXECUTE FUNCTION does()"
            )
        )
    yield
    with transaction(sessions) as session:
        session.execute(text("DROP FUNCTION does CASCADE"))
        session.execute(text("DROP SEQUENCE num_commits"))


FAILS_TWICE = """
    IF nextval('num_commits') <= 2 THEN
        RAISE EXCEPTION 'not yet' USING ERRCODE = 'serialization_failure';
    END IF
"""


def test_a_request_is_made_while_its_claim_commits_and_sent_afterwards(
    queue: Queue, feeding: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    told, reserved = list[bool](), list[int]()
    tell, start = Claiming.tell, RunStream.start

    def tell_noted(claiming: Claiming, *, is_claimed: bool) -> None:
        told.append(is_claimed)
        tell(claiming, is_claimed=is_claimed)

    def start_noted(stream: RunStream) -> None:
        reserved.append(len(queue.reservations()))  # as others see them
        start(stream)

    monkeypatch.setattr(Claiming, "tell", tell_noted)
    monkeypatch.setattr(RunStream, "start", start_noted)
    with at_commits(queue.sessions, FAILS_TWICE), running_worker(feeding(), queue.tokenizer):
        job = queue.ended(queue.submit("A question. [[tokens=20]]"))
    assert told == [False, False, True]
    assert reserved == [1]
    assert (job.state, job.completion_tokens, job.attempt, job.num_rescues) == ("completed", 20, 0, 0)
    assert queue.reservations() == []


def test_an_idle_engine_gets_a_request_before_its_claim_once_its_worker_has_served(
    queue: Queue, feeding: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    reserved, start, prepare, has_started = (
        list[int](),
        RunStream.start,
        Dispatcher._prepare,
        threading.Event(),
    )

    def start_noted(stream: RunStream) -> None:
        reserved.append(len(queue.reservations()))  # as others see them
        has_started.set()
        start(stream)

    def prepare_late(dispatcher: Dispatcher, claims: Sequence[Claim], model: EngineModel) -> object:
        if claims and reserved:
            assert has_started.wait(PATIENCE), "the request goes before the commit, which follows this"
        return prepare(dispatcher, claims, model)

    monkeypatch.setattr(RunStream, "start", start_noted)
    monkeypatch.setattr(Dispatcher, "_prepare", prepare_late)
    with running_worker(feeding(), queue.tokenizer):
        assert queue.ended(queue.submit("The first question. [[tokens=20]]")).state == "completed"
        has_started.clear()
        assert queue.ended(queue.submit("The next question. [[tokens=20]]")).state == "completed"
        monkeypatch.setattr(Dispatcher, "_prepare", prepare)
        with at_commits(queue.sessions, FAILS_TWICE):
            job = queue.ended(queue.submit("The last question. [[tokens=300]]", max_tokens=400))
    assert reserved[:2] == [1, 0]
    assert len(reserved) > 3, "the first request for the last one was stopped"
    assert (job.state, job.completion_tokens, job.attempt, job.num_rescues) == ("completed", 300, 0, 0)
    assert queue.reservations() == []


def test_a_run_that_fails_before_its_commit_is_rescued(
    queue: Queue, feeding: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    make, made = RequestMaker.empty_answer, list[UUID]()

    def fail_once(requests: RequestMaker, job: StartedJob, model: EngineModel) -> AnyAnswer:
        made.append(job.id)
        if len(made) == 1:
            raise MemoryError
        return make(requests, job, model)

    monkeypatch.setattr(RequestMaker, "empty_answer", fail_once)
    settings = feeding(lease_seconds=3, renew_seconds=1)
    with (
        at_commits(queue.sessions, "PERFORM pg_sleep(0.3)"),
        running_worker(settings, queue.tokenizer) as worker,
    ):
        job_id = queue.submit("A question. [[tokens=20]]")
        queue.when(job_id, lambda job: job.state == "running")
        eventually(lambda: not worker.keeper.running())  # nobody renews its lease, so it can be rescued
        assert made == [job_id]
