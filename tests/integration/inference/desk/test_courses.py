"""Whatever ends, fails and is cancelled in whatever order: the books fit, and every job ends once."""

import random
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session, sessionmaker

from claiming.desks import hand_in
from jobs import lifecycle
from jobs.database import transaction
from jobs.models import DEFAULT_TENANT, Job, Reservation, Result
from jobs.models.attempt import Attempt
from jobs.scheduling import tick
from jobs.scheduling.tick import Tick
from jobs.settings import Settings
from jobs.starting import Claim
from support import CAPACITY as TESTED
from support import POLICY, register_engine, spec, submit_one
from worker.inference.desk import Desk

CAPACITY = replace(TESTED, max_blocks=60, max_input_len=1000, max_seq_len=1280)
NUM_JOBS = 60


class Course:
    """A desk whose engine does what chance says.

    Attributes:
        inside: claims whose requests are in the engine.
        over: those whose requests are over, and whose ends are not handed in yet.
    """

    def __init__(self, settings: Settings, sessions: sessionmaker[Session], rng: random.Random) -> None:
        self.sessions, self.rng = sessions, rng
        self.desk = Desk(settings, sessions, stopping=threading.Event())
        self.inside: list[Claim] = []
        self.over: list[Claim] = []

    def go_on(self) -> None:
        """What runs do meanwhile."""
        for _ in range(self.rng.randint(0, 4)):
            if self.rng.random() < 0.5 and self.inside:
                self.end_request()
            elif self.over:
                self.hand_in()

    def end_request(self) -> None:
        self.over.append(self.inside.pop(self.rng.randrange(len(self.inside))))

    def hand_in(self) -> None:
        hand_in(self.desk, self.over.pop(self.rng.randrange(len(self.over))))

    def cancel(self, job_id: UUID) -> None:
        with transaction(self.sessions) as session:
            if session.get_one(Job, job_id).state == "queued":
                lifecycle.cancel(session, job_id, tenant_id=DEFAULT_TENANT)

    def tick(self) -> None:
        with suppress(OperationalError):  # one that stores nothing fails as a whole
            self.desk.tick(POLICY, start=self.start)
        with self.sessions() as session:
            booked = {each.lease_id: each.blocks for each in session.scalars(select(Reservation))}
        assert len(booked) <= CAPACITY.max_batch_size
        assert sum(booked.values()) <= CAPACITY.max_blocks
        assert {each.lease.lease_id for each in self.inside} <= set(booked)

    def start(self, result: Tick) -> None:
        self.inside += result.claims
        assert len(self.inside) <= CAPACITY.max_batch_size
        assert sum(each.blocks for each in self.inside) <= CAPACITY.max_blocks


@pytest.mark.parametrize("seed", range(10))
def test_in_whatever_order_things_happen_every_job_ends_once_and_the_engine_has_room(
    sessions: sessionmaker[Session],
    feeding: Callable[..., Settings],
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    rng, as_ever = random.Random(seed), tick.tick  # noqa: S311
    course, num_ticks = Course(feeding(), sessions, rng), 0

    def tick_or_fail(*given: Any, **named: Any) -> Tick:  # noqa: ANN401  # as it takes them
        nonlocal num_ticks
        num_ticks += 1
        course.go_on()
        result = as_ever(*given, **named)
        course.go_on()
        if num_ticks % 5 == 0:
            raise OperationalError("", None, Exception())
        return result

    monkeypatch.setattr(tick, "tick", tick_or_fail)
    with transaction(sessions) as session:
        register_engine(session, capacity=CAPACITY)
        asked = [
            submit_one(session, spec(rng.randint(20, 900), max_tokens=rng.choice([16, 64, 256]))).id
            for _ in range(NUM_JOBS)
        ]
    states, num_steps = Counter[str]({"queued": NUM_JOBS}), 0
    while states["queued"] or states["running"]:
        num_steps += 1
        assert num_steps < 100 * NUM_JOBS, "it ends"
        action = rng.random()
        if action < 0.4 and course.inside:
            course.end_request()
        elif action < 0.7 and course.over:
            course.hand_in()
        elif action < 0.72:
            course.cancel(rng.choice(asked))
        else:
            course.tick()
        with sessions() as session:
            states = Counter(session.scalars(select(Job.state)))
    with sessions() as session:
        assert list(session.scalars(select(Reservation))) == []
        tries = Counter(session.scalars(select(Attempt.job_id)))
        results = set(session.scalars(select(Result.job_id)))
        completed = set(session.scalars(select(Job.id).where(Job.state == "completed")))
    assert set(states) <= {"completed", "cancelled"}, states
    assert results == completed == set(tries)
    assert set(tries.values()) == {1}
