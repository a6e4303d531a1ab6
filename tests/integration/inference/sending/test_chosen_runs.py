"""Requests that a tick sends before it claims their jobs, and the tick fails, or a job has run meanwhile."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import select, update
from sqlalchemy.exc import OperationalError

from claiming.courses import CAPACITY, Course, eventually_empty
from jobs.database import transaction
from jobs.models import Job, Reservation
from jobs.models.attempt import Attempt
from jobs.scheduling import growth, ticks
from jobs.scheduling.growth import Granted, WaitForBlocks
from support import ENGINE, PATIENCE, POLICY, eventually, spec, submit_one
from worker.inference.desk import Desk


@pytest.fixture
def served(course: Course) -> Course:
    """One whose first run has ended."""
    queue(course, 1)
    course.tick()
    assert course.num_early == 0, "the first request of a worker follows its claim"
    course.end_request(course.inside[0])
    course.hand_in(course.ended[0])
    return course


@pytest.fixture
def failed(served: Course, monkeypatch: pytest.MonkeyPatch) -> Iterator[Course]:
    """One whose last tick failed once it had chosen a job for each slot, and could note no place."""
    queue(served, CAPACITY.max_batch_size)
    monkeypatch.setattr(Desk, "_note_strays", lambda _desk: None)
    tick_and_fail(served, monkeypatch)
    assert len(served.inside) == CAPACITY.max_batch_size
    assert all(each.early is not None and each.early.is_refused for each in served.inside)
    yield served
    all_end_once(served)


def queue(course: Course, num_jobs: int, *, prompt_tokens: int = 20, max_tokens: int = 16) -> None:
    with transaction(course.sessions) as session:
        for _ in range(num_jobs):
            submit_one(session, spec(prompt_tokens, max_tokens=max_tokens))
    course.prefetched.read()


def tick_and_fail(course: Course, monkeypatch: pytest.MonkeyPatch) -> None:
    tick = ticks.tick

    def fail(*given: Any, **named: Any) -> ticks.TickResult:  # noqa: ANN401  # as it takes them
        tick(*given, **named)
        raise OperationalError("", None, Exception())

    with monkeypatch.context() as patch:
        patch.setattr(ticks, "tick", fail)
        course.tick_or_fail()


def all_end_once(course: Course) -> None:
    eventually_empty(course)
    with course.sessions() as session:
        assert set(session.scalars(select(Job.state))) == {"completed"}
        assert set(Counter(session.scalars(select(Attempt.job_id))).values()) == {1}


def places(course: Course) -> list[str]:
    with course.sessions() as session:
        return list(session.scalars(select(Reservation.state)))


def test_what_a_failed_tick_has_sent_keeps_its_room_until_it_has_ended(failed: Course) -> None:
    assert places(failed) == []
    failed.tick()
    assert len(failed.inside) == CAPACITY.max_batch_size
    assert places(failed) == CAPACITY.max_batch_size * ["draining"]


def test_what_ends_before_its_place_is_noted_leaves_none(
    failed: Course, monkeypatch: pytest.MonkeyPatch
) -> None:
    tick, strays = ticks.tick, list(failed.inside)

    def end_all(*given: Any, **named: Any) -> ticks.TickResult:  # noqa: ANN401  # as it takes them
        result = tick(*given, **named)
        for each in strays:
            failed.end_request(each)
            failed.hand_in(each)
        for each in strays:
            assert each.early is not None
            assert each.early.left.result(PATIENCE), "it has left, and closed no place"
        return result

    with monkeypatch.context() as patch:
        patch.setattr(ticks, "tick", end_all)
        failed.tick()
    eventually(lambda: "draining" not in places(failed))


def test_a_failed_tick_leaves_places_for_what_it_has_sent_which_other_workers_see(
    served: Course, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue(served, CAPACITY.max_batch_size)
    tick_and_fail(served, monkeypatch)
    assert places(served) == CAPACITY.max_batch_size * ["draining"]
    assert not served.head_starts.has_strays
    all_end_once(served)


def test_no_job_grows_into_what_no_reservation_shows(served: Course, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Desk, "_note_strays", lambda _desk: None)
    queue(served, 1, max_tokens=1200)
    served.tick()
    (growing,) = served.inside
    with transaction(served.sessions) as session:
        # As if its tenant's answers had been short.
        session.execute(update(Reservation).values(blocks=2, output_tokens=100))
    growing.blocks = 2
    queue(served, 3, prompt_tokens=900, max_tokens=256)
    tick_and_fail(served, monkeypatch)
    assert sum(each.blocks for each in served.inside) > CAPACITY.max_blocks - 2

    def grow() -> object:
        with transaction(served.sessions) as session:
            return growth.extend(
                session,
                ENGINE,
                growing.job.lease,
                produced=100,
                policy=POLICY,
                is_known=lambda: not served.head_starts.has_strays,
            )

    assert grow() == WaitForBlocks()
    for each in [each for each in served.inside if each is not growing]:
        served.end_request(each)
        served.hand_in(each)
        assert each.early is not None
        each.early.left.result(PATIENCE)
    assert isinstance(grow(), Granted)
    all_end_once(served)


def test_a_job_that_has_run_since_its_row_was_read_is_not_sent_before_its_claim(served: Course) -> None:
    queue(served, 1)
    before = served.prefetched.rows
    served.prefetched.rows = {key: row._replace(completion_tokens=5) for key, row in before.items()}
    served.tick()
    assert served.num_early == 0
    assert len(served.inside) == 1
    all_end_once(served)


def test_what_begins_while_a_tick_claims_follows_what_it_has_sent(
    served: Course, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue(served, 1)
    served.tick()
    (running,) = served.inside
    queue(served, 2 * CAPACITY.max_batch_size)
    in_order = [each.job.id for each in served.prefetched.preview.candidates]
    tick = ticks.tick

    def end_one(*given: Any, **named: Any) -> ticks.TickResult:  # noqa: ANN401  # as it takes them
        result = tick(*given, **named)
        assert served.head_starts.has_strays, "until it is known that all of them are claimed"
        served.end_request(running)
        return result

    with monkeypatch.context() as patch:
        patch.setattr(ticks, "tick", end_one)
        served.tick()
    assert not served.head_starts.has_strays
    sent = [each.early.lease.job_id for each in served.inside if each.early is not None]
    assert sent == in_order[: CAPACITY.max_batch_size]
    served.hand_in(running)
    all_end_once(served)
