"""A worker sends requests before their jobs are claimed: they are taken over, or stopped."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select, text

from jobs.checkpoints import Output
from jobs.database import transaction
from jobs.models import Job
from jobs.models.attempt import Attempt
from jobs.scheduling import ticks
from jobs.scheduling.head_starts import Outlook
from jobs.settings import Settings
from support import PATIENCE, eventually
from worker.inference import execute, record
from worker.inference.desk import Desk
from worker.inference.dispatcher import Dispatcher
from worker.inference.draining import DrainMonitor
from worker.inference.lone_ends import StoredEnd
from worker.inference.outcome import Failed, Finished, Outcome
from worker.inference.record import JobRun, NoVisibleTextError
from worker.inference.sending.early_run import EarlyRun
from worker.metrics.process import ProcessMetrics
from worker_support import ENGINE, Queue, running_worker

NUM_SLOTS = 4


def counted(metrics: ProcessMetrics, outcome: str) -> float:
    labels = {"engine": ENGINE, "outcome": outcome}
    return metrics.registry.get_sample_value("longbatch_head_starts_total", labels) or 0


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "seed": 7}])
def test_answers_are_the_same_with_head_starts_and_without(
    queue: Queue, feeding: Callable[..., Settings], sampling: dict[str, object]
) -> None:
    answers = []
    for head_starts in (True, False):
        metrics = ProcessMetrics()
        texts = [f"Number {number}. [[tokens={150 + 20 * (number % 5)}]]" for number in range(20)]
        asked = [queue.submit(text, max_tokens=300, sampling=sampling) for text in texts]
        with running_worker(feeding(head_starts=head_starts), queue.tokenizer, metrics=metrics):
            jobs = [queue.ended(each) for each in asked]
        assert {(job.state, job.attempt, job.num_rescues) for job in jobs} == {("completed", 0, 0)}
        answers.append([queue.result_ids(each) for each in asked])
        assert (counted(metrics, "taken") > 0) is head_starts
        assert queue.reservations() == []
    assert answers[0] == answers[1]


def test_a_request_whose_job_cannot_be_claimed_is_stopped_and_leaves_nothing(
    queue: Queue, feeding: Callable[..., Settings]
) -> None:
    metrics = ProcessMetrics()
    running = [
        queue.submit(f"{number}. [[tokens={1200 + 100 * number}]]", max_tokens=2000)
        for number in range(NUM_SLOTS)
    ]
    with running_worker(feeding(), queue.tokenizer, metrics=metrics):
        for each in running:
            queue.streaming(each)
        waiting = queue.submit("The last. [[tokens=100]]", max_tokens=200)
        with transaction(queue.sessions) as holding:
            holding.scalars(select(Job).where(Job.id == waiting).with_for_update()).one()
            eventually(lambda: counted(metrics, "stopped"))
            for each in running:
                queue.ended(each)
            eventually(lambda: queue.reservations() == [])
            assert queue.job(waiting).state == "queued"
        job = queue.ended(waiting)
    assert (job.state, job.completion_tokens, job.attempt) == ("completed", 100, 0)
    assert queue.reservations() == []


@contextmanager
def stopped_head_start(queue: Queue, settings: Settings) -> Iterator[UUID]:
    """A worker stops after the head start of a locked job, which no tick could claim, was stopped."""
    metrics, running = ProcessMetrics(), fill(queue)
    with transaction(queue.sessions) as holding:
        with running_worker(settings, queue.tokenizer, metrics=metrics):
            for each in running:
                queue.streaming(each)
            waiting = queue.submit("The last. [[tokens=100]]", max_tokens=200)
            holding.scalars(select(Job).where(Job.id == waiting).with_for_update()).one()
            eventually(lambda: counted(metrics, "stopped"))
        yield waiting


def fill(queue: Queue) -> list[UUID]:
    """Jobs for all slots, which end one after the other."""
    return [
        queue.submit(f"{number}. [[tokens={1200 + 100 * number}]]", max_tokens=2000)
        for number in range(NUM_SLOTS)
    ]


def test_a_worker_that_shuts_down_waits_for_the_requests_that_it_stops(
    queue: Queue, feeding: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    leave, stop = EarlyRun.may_leave, Dispatcher.stop
    is_shutting_down, left = threading.Event(), list[int]()

    async def leave_late(early: EarlyRun) -> bool:
        await asyncio.to_thread(is_shutting_down.wait, PATIENCE)
        return await leave(early)

    def stop_noted(dispatcher: Dispatcher, *, grace_seconds: float) -> None:
        is_shutting_down.set()
        stop(dispatcher, grace_seconds=grace_seconds)
        left.append(len(dispatcher._runs))

    monkeypatch.setattr(EarlyRun, "may_leave", leave_late)
    monkeypatch.setattr(Dispatcher, "stop", stop_noted)
    with stopped_head_start(queue, feeding()):
        assert left == [0], "it has waited"
        assert queue.reservations() == []


def test_whatever_goes_wrong_with_foretelling_no_answer_is_lost(
    queue: Queue, feeding: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [queue.submit(f"Number {number}. [[tokens=50]]", max_tokens=100) for number in range(8)]

    def fail(*_: object, **__: object) -> None:
        raise ArithmeticError

    monkeypatch.setattr(Outlook, "successor", fail)
    with running_worker(feeding(), queue.tokenizer):
        jobs = [queue.ended(each) for each in asked]
    assert {(job.state, job.attempt, job.num_rescues) for job in jobs} == {("completed", 0, 0)}


def test_a_request_of_which_no_end_is_known_keeps_its_place(
    queue: Queue, feeding: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: object, **__: object) -> bool:
        return False

    monkeypatch.setattr(execute, "wait_for_end", never)
    monkeypatch.setattr(execute, "_END_SECONDS", 0)
    # Or the gauges prove the end, if the worker takes a second to stop.
    monkeypatch.setattr(DrainMonitor, "check", lambda *_, **__: 0)
    with stopped_head_start(queue, feeding()) as waiting:
        draining = {each.job_id for each in queue.reservations() if each.state == "draining"}
    # Jobs that the shutdown stopped may drain as well.
    assert waiting in draining
    assert queue.job(waiting).state == "queued"


def test_short_jobs_are_answered_before_their_claims_and_end_once(
    queue: Queue, feeding: Callable[..., Settings]
) -> None:
    metrics = ProcessMetrics()
    asked = [queue.submit(f"Number {number}. [[tokens=2]]", max_tokens=8) for number in range(60)]
    with running_worker(feeding(), queue.tokenizer, metrics=metrics):
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
    assert counted(metrics, "taken") > 30
    assert queue.reservations() == []


def test_only_whole_answers_are_handed_in_before_their_claims(
    queue: Queue, feeding: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    tick, hand_in, unclaimed, came = ticks.tick, Desk.hand_in, list[Outcome](), threading.Event()
    asked = [queue.submit(f"Number {number}. [[tokens=2]]", max_tokens=8) for number in range(60)]
    lost = set(asked[::6])

    def tick_slowly(*given: Any, **named: Any) -> ticks.TickResult:  # noqa: ANN401  # as it takes them
        came.clear()
        if named["begun"].claimed_now:
            came.wait(0.2)  # a run that begins now may end before its claim
        return tick(*given, **named)

    def judged(run: JobRun, outcome: Outcome, _output: Output) -> Outcome:
        return Failed(NoVisibleTextError()) if run.claim.job.id in lost else outcome

    def note(desk: Desk, *given: Any, early: EarlyRun | None = None) -> "Future[StoredEnd]":  # noqa: ANN401
        if early is not None and not early.is_claimed:
            unclaimed.append(given[1].outcome)
            came.set()
        return hand_in(desk, *given, early=early)

    monkeypatch.setattr(ticks, "tick", tick_slowly)
    monkeypatch.setattr(record, "_judged", judged)
    monkeypatch.setattr(Desk, "hand_in", note)
    with running_worker(feeding(), queue.tokenizer):
        states = {each: queue.ended(each).state for each in asked}
    assert {each for each, state in states.items() if state == "failed"} == lost
    assert {type(each) for each in unclaimed} == {Finished}
    assert queue.reservations() == []


@pytest.fixture
def refuse(queue: Queue) -> Iterator[Callable[[UUID], None]]:
    """Let the database refuse every reservation for a job."""

    def refuse(job_id: UUID) -> None:
        body = "BEGIN RAISE check_violation; END"
        with transaction(queue.sessions) as session:
            session.execute(
                text("CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS '" + body + "'")
            )
            when = f"BEFORE INSERT ON reservations FOR EACH ROW WHEN (NEW.job_id = '{job_id}')"
            session.execute(text(f"CREATE TRIGGER refuses {when} EXECUTE FUNCTION refuse()"))

    yield refuse
    with transaction(queue.sessions) as session:
        session.execute(text("DROP FUNCTION IF EXISTS refuse CASCADE"))


def test_a_head_start_that_the_database_refuses_harms_no_other_job(
    queue: Queue, feeding: Callable[..., Settings], refuse: Callable[[UUID], None]
) -> None:
    metrics, running = ProcessMetrics(), fill(queue)
    with running_worker(feeding(), queue.tokenizer, metrics=metrics):
        for each in running:
            queue.streaming(each)
        bad = queue.submit("The bad one. [[tokens=100]]", max_tokens=200)
        refuse(bad)
        eventually(lambda: counted(metrics, "stopped"))
        good = [queue.submit(f"Good {number}. [[tokens=100]]", max_tokens=200) for number in range(4)]
        jobs = [queue.ended(each) for each in [*running, *good]]
        assert queue.ended(bad).state == "failed"
    assert {(job.state, job.attempt, job.num_rescues) for job in jobs} == {("completed", 0, 0)}
    assert queue.reservations() == []
