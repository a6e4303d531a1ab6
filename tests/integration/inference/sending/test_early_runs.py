"""Runs that begin before their claims: whatever ends, fails and is cancelled in whatever order.

Each course ends requests, hands in answers, cancels jobs, lets ticks fail and ticks, by chance. The engine is
never asked for more than it has, every slot in use is booked, and each job ends once.
"""

import random
from collections import Counter
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.exc import OperationalError

from claiming.courses import Course, eventually_empty
from jobs.database import transaction
from jobs.models import Job, Result
from jobs.models.attempt import Attempt
from jobs.scheduling import ticks
from support import spec, submit_one

NUM_JOBS = 60


@pytest.mark.parametrize("seed", range(10))
def test_in_whatever_order_things_happen_every_job_ends_once_and_the_engine_has_room(
    course: Course, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng, tick = random.Random(seed), ticks.tick  # noqa: S311

    def tick_or_fail(*given: Any, **named: Any) -> ticks.TickResult:  # noqa: ANN401  # as it takes them
        course.go_on(rng)
        course.is_choosing = True
        result = tick(*given, **named)
        course.is_choosing = False
        course.go_on(rng)
        if rng.random() < fails:
            raise OperationalError("", None, Exception())
        return result

    monkeypatch.setattr(ticks, "tick", tick_or_fail)
    fails, course.rng = 0.1, rng
    with transaction(course.sessions) as session:
        asked = [
            submit_one(session, spec(rng.randint(20, 900), max_tokens=rng.choice([16, 64, 256]))).id
            for _ in range(NUM_JOBS)
        ]
    course.prefetched.read()
    num_steps = 0
    while course.inside or course.ended or course.handed_in or num_steps < 3 * NUM_JOBS:
        num_steps += 1
        assert num_steps < 100 * NUM_JOBS, "it ends"
        action = rng.random()
        if action < 0.4 and course.inside:
            course.end_request(rng.choice(course.inside))
        elif action < 0.7 and course.ended:
            course.hand_in(rng.choice(course.ended))
        elif action < 0.72:
            course.cancel(rng.choice(asked))
        elif action < 0.8:
            course.prefetched.read()
        else:
            course.tick()
    eventually_empty(course)
    with course.sessions() as session:
        states = Counter(session.scalars(select(Job.state)))
        tries = Counter(session.scalars(select(Attempt.job_id)))
        results = set(session.scalars(select(Result.job_id)))
        completed = set(session.scalars(select(Job.id).where(Job.state == "completed")))
    assert set(states) <= {"completed", "cancelled"}, states
    assert results == completed == set(tries)
    assert set(tries.values()) == {1}
    assert course.num_early > 5
    assert course.num_chosen > 0
    assert course.num_answered > 0
