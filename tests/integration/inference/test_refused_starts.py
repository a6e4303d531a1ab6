"""A job that the database refuses to start is set aside, and fails if others start: it stops no claims."""

import threading
from collections.abc import Callable, Iterator
from uuid import UUID

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from jobs.database import transaction
from jobs.models import Job
from jobs.settings import Settings
from jobs.states import FinishReason, JobState
from support import POLICY, output_of, register_engine, submit_one
from worker.inference.desk import Desk
from worker.inference.outcome import Finished, RunEnd
from worker.inference.run import Run


@pytest.fixture
def desk(sessions: sessionmaker[Session], feeding: Callable[..., Settings]) -> Desk:
    with transaction(sessions) as session:
        register_engine(session)
    return Desk(feeding(), sessions, stopping=threading.Event())


@pytest.fixture
def refuse(sessions: sessionmaker[Session]) -> Iterator[Callable[..., None]]:
    """Let the database refuse to reserve blocks for a job, with this error."""

    def refuse(job_id: UUID, error: str = "check_violation") -> None:
        body = f"BEGIN RAISE {error}; END"
        with transaction(sessions) as session:
            session.execute(
                text("CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS '" + body + "'")
            )
            when = f"BEFORE INSERT ON reservations FOR EACH ROW WHEN (NEW.job_id = '{job_id}')"
            session.execute(text(f"CREATE TRIGGER refuses {when} EXECUTE FUNCTION refuse()"))

    yield refuse
    with transaction(sessions) as session:
        session.execute(text("DROP FUNCTION IF EXISTS refuse CASCADE"))


def submit(sessions: sessionmaker[Session], number: int) -> list[UUID]:
    with transaction(sessions) as session:
        return [submit_one(session).id for _ in range(number)]


def read(sessions: sessionmaker[Session], job_id: UUID) -> Job:
    with sessions() as session:
        return session.get_one(Job, job_id)


def claimed(desk: Desk) -> set[UUID]:
    return {each.job.id for each in desk.tick(POLICY).claims}


def test_a_job_at_the_head_that_the_database_refuses_to_start_fails_alone(
    sessions: sessionmaker[Session], desk: Desk, refuse: Callable[..., None]
) -> None:
    bad, *good = submit(sessions, 3)
    refuse(bad)
    wakes: list[None] = []
    desk.wake = lambda: wakes.append(None)
    assert claimed(desk) == set()
    assert wakes, "the next tick comes at once"
    assert claimed(desk) == set(good)
    job = read(sessions, bad)
    assert (job.state, job.error and job.error["code"]) == (JobState.FAILED, "internal_error")


def test_ends_are_stored_beside_a_job_that_the_database_refuses_to_start(
    sessions: sessionmaker[Session], desk: Desk, refuse: Callable[..., None]
) -> None:
    submit(sessions, 1)
    (ending,) = desk.tick(POLICY).claims
    bad, good = submit(sessions, 2)
    refuse(bad)
    run = Run(ending, float("inf"))
    stored = desk.hand_in(run, RunEnd(Finished(FinishReason.STOP), engine_is_done=True), output_of("x"))
    desk.tick(POLICY)
    assert stored.result(timeout=0).state is JobState.COMPLETED
    assert claimed(desk) == {good}


def test_a_job_that_is_refused_while_none_can_start_waits_until_another_shows_that_it_is_to_blame(
    sessions: sessionmaker[Session], desk: Desk, refuse: Callable[..., None]
) -> None:
    (bad,) = submit(sessions, 1)
    refuse(bad)
    for _ in range(3):
        assert claimed(desk) == set()
    assert read(sessions, bad).state == JobState.QUEUED
    (other,) = submit(sessions, 1)
    assert claimed(desk) == {other}
    assert read(sessions, bad).state == JobState.FAILED


def test_a_job_that_starts_again_once_others_do_is_not_to_blame(
    sessions: sessionmaker[Session], desk: Desk, refuse: Callable[..., None]
) -> None:
    (innocent,) = submit(sessions, 1)
    refuse(innocent)
    assert claimed(desk) == set()
    with transaction(sessions) as session:
        session.execute(text("DROP FUNCTION refuse CASCADE"))
    (other,) = submit(sessions, 1)
    assert claimed(desk) == {other}
    assert read(sessions, innocent).state == JobState.QUEUED


def test_a_job_refused_for_no_fault_of_its_values_is_set_aside_and_not_failed(
    sessions: sessionmaker[Session], desk: Desk, refuse: Callable[..., None]
) -> None:
    bad, *good = submit(sessions, 3)
    refuse(bad, "insufficient_privilege")
    claimed(desk)
    assert claimed(desk) == set(good)
    assert claimed(desk) == set()
    assert read(sessions, bad).state == JobState.QUEUED
