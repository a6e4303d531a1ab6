"""Runs that begin before their claims: whatever ends, fails and is cancelled in whatever order.

Each course ends requests, hands in answers, cancels jobs, lets ticks fail and ticks, by chance. The engine is
never asked for more than it has, every slot in use is booked, and each job ends once.
"""

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, cast
from uuid import UUID

import pytest
from sqlalchemy import select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session, sessionmaker

from claiming.desks import STOPPED
from jobs import lifecycle, starting
from jobs.database import transaction
from jobs.engines import reservations
from jobs.models import DEFAULT_TENANT, Job, Reservation, Result
from jobs.models.attempt import Attempt
from jobs.prompts.store import CountedPrompt
from jobs.queries import QueuedJob
from jobs.scheduling import previews, ticks
from jobs.scheduling.claims import ClaimResult
from jobs.scheduling.previews import Preview
from jobs.settings import Settings
from jobs.starting import StartedJob
from jobs.transitions import Lease
from support import CAPACITY as TESTED
from support import ENGINE, PATIENCE, POLICY, eventually, output_of, register_engine, spec, submit_one
from worker.engine import loop
from worker.engine.client import EngineModel
from worker.inference.desk import Desk
from worker.inference.leases import RunningJob
from worker.inference.lone_ends import StoredEnd
from worker.inference.prefetch import PromptPrefetcher
from worker.inference.sending.early_run import EarlyRun
from worker.inference.sending.head_starts import HeadStarts
from worker.inference.sending.requests import RequestMaker
from worker.metrics.runs import RunMetrics

CAPACITY = replace(TESTED, max_blocks=60, max_input_len=1000, max_seq_len=1280)
NUM_JOBS = 60


@dataclass
class Prefetched:
    """The head of the queue as it was when it was last read, with every prompt."""

    sessions: sessionmaker[Session]
    preview: Preview = field(default_factory=Preview)
    rows: dict[UUID, StartedJob] = field(default_factory=dict)

    def read(self) -> None:
        with transaction(self.sessions) as session:
            self.preview = previews.preview_claims(session, ENGINE, POLICY)
            self.rows = starting.read_queued(session, [each.job.id for each in self.preview.candidates])

    def forget(self, job_ids: Iterable[UUID]) -> None:
        started = set(job_ids)
        self.preview = Preview([each for each in self.preview.candidates if each.job.id not in started])

    def candidates(self) -> Preview:
        return self.preview

    def find(self, job: QueuedJob) -> tuple[StartedJob, CountedPrompt] | None:
        row = self.rows.get(job.id)
        return None if row is None else (row, cast("CountedPrompt", None))


class AnyRequest:
    """Every request can be made at once."""

    def can_be_early(self, *_: object) -> bool:
        return True


@dataclass(eq=False)
class Request:
    """A request in the engine."""

    job: RunningJob
    blocks: int
    early: EarlyRun | None = None
    stored: "Future[StoredEnd] | None" = None


class Course:
    """A worker whose engine does what chance says."""

    def __init__(
        self, settings: Settings, sessions: sessionmaker[Session], threads: ThreadPoolExecutor
    ) -> None:
        self.sessions = sessions
        self.prefetched = Prefetched(sessions)
        model = EngineModel(cast("Any", None), CAPACITY)
        self.head_starts = HeadStarts(
            cast("PromptPrefetcher", self.prefetched),
            cast("RequestMaker", AnyRequest()),
            model=lambda: model,
            close_reservation=self.close_reservation,
            threads=threads,
            metrics=RunMetrics.of_nobody(),
            lease_seconds=60,
        )
        self.head_starts.run = self.begin_early
        self.desk = Desk(settings, sessions, stopping=threading.Event(), head_starts=self.head_starts)
        self.inside: list[Request] = []
        self.ended: list[Request] = []
        self.handed_in: list[Request] = []
        self.num_early = self.num_answered = self.num_chosen = 0
        self.rng = random.Random(0)  # noqa: S311
        self.is_choosing = self.has_failed = False

    def close_reservation(self, lease: Lease) -> None:
        with transaction(self.sessions) as session:
            reservations.close(session, lease.lease_id)

    def begin_early(self, early: EarlyRun, _model: EngineModel) -> None:
        self.num_early += 1
        self.inside.append(Request(early.job, early.head_start.ranked.candidate.blocks, early))
        self.check_engine()
        if self.is_choosing:
            self.num_chosen += 1
            if self.rng.random() < 0.1:  # too late for the request, in time for the claim
                self.cancel(early.lease.job_id)

    def check_engine(self) -> None:
        assert len(self.inside) <= CAPACITY.max_batch_size
        assert sum(each.blocks for each in self.inside) <= CAPACITY.max_blocks

    def end_request(self, request: Request) -> None:
        """The engine confirms the end of a request, whose slot the next one takes, and some run is late."""
        self.inside.remove(request)
        request.job.is_ending = True
        if request.early is not None:
            request.early.is_over = True
        self.head_starts.begin(request.job.lease, request.early)
        self.ended.append(request)

    def hand_in(self, request: Request) -> None:
        self.ended.remove(request)
        if request.early is not None and request.early.is_refused:
            self.give_up(request.early)
            return
        request.stored = self.desk.hand_in(request.job, STOPPED, output_of("x"), early=request.early)
        self.handed_in.append(request)

    def go_on(self, rng: random.Random) -> None:
        """Whatever may happen while a tick is under way."""
        for _ in range(rng.randint(0, 4)):
            if rng.random() < 0.5 and self.inside:
                self.end_request(rng.choice(self.inside))
            elif self.ended:
                self.hand_in(rng.choice(self.ended))

    def tick(self) -> None:
        waiting = [each for each in self.handed_in if each.early is not None and not each.early.is_claimed]
        self.has_failed = False
        self.tick_or_fail()
        self.num_answered += sum(each.job.is_stored for each in waiting)
        for each in [each for each in self.handed_in if each.stored is not None and each.stored.done()]:
            self.handed_in.remove(each)
            if each.early is not None and each.early.is_refused:
                self.give_up(each.early)
        self.check_books()

    def tick_or_fail(self) -> None:
        with suppress(OperationalError):  # one that stores nothing fails as a whole
            self.desk.tick(POLICY, self.prefetched.candidates(), start=self.start)

    def start(self, result: ClaimResult) -> None:
        early = self.head_starts.take_claimed()
        for claim in result.claims:
            if claim.lease not in early:
                self.inside.append(Request(RunningJob(claim.lease, float("inf")), claim.blocks))
        self.prefetched.forget(claim.job.id for claim in result.claims)
        self.check_engine()

    def give_up(self, early: EarlyRun) -> None:
        loop.start(self.head_starts.give_up(early))

    def check_books(self) -> None:
        with self.sessions() as session:
            booked = list(session.scalars(select(Reservation.blocks)))
        assert len(booked) <= CAPACITY.max_batch_size
        assert sum(booked) <= CAPACITY.max_blocks
        strays = [each for each in self.inside if each.early is not None and each.early.is_refused]
        assert len(self.inside) <= len(booked) + (len(strays) if self.has_failed else 0)

    def cancel(self, job_id: UUID) -> None:
        with transaction(self.sessions) as session:
            if session.get_one(Job, job_id).state == "queued":
                lifecycle.cancel(session, job_id, tenant_id=DEFAULT_TENANT)


@pytest.fixture
def course(sessions: sessionmaker[Session], feeding: Callable[..., Settings]) -> "Course":
    with transaction(sessions) as session:
        register_engine(session, capacity=CAPACITY)
    return Course(feeding(), sessions, ThreadPoolExecutor(1))


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
            course.has_failed = True
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


@pytest.fixture
def full(course: Course, monkeypatch: pytest.MonkeyPatch) -> Iterator[Course]:
    """One whose first run has ended, and whose next tick fails once it has chosen a job for each slot."""
    with transaction(course.sessions) as session:
        submit_one(session, spec(20, max_tokens=16))
    course.prefetched.read()
    course.tick()
    assert course.num_early == 0, "the first request of a worker follows its claim"
    course.end_request(course.inside[0])
    course.hand_in(course.ended[0])
    with transaction(course.sessions) as session:
        for _ in range(CAPACITY.max_batch_size):
            submit_one(session, spec(20, max_tokens=16))
    course.prefetched.read()
    tick = ticks.tick

    def fail(*given: Any, **named: Any) -> ticks.TickResult:  # noqa: ANN401  # as it takes them
        tick(*given, **named)
        raise OperationalError("", None, Exception())

    with monkeypatch.context() as patch:
        patch.setattr(ticks, "tick", fail)
        course.tick_or_fail()
    assert len(course.inside) == CAPACITY.max_batch_size
    assert all(each.early is not None and each.early.is_refused for each in course.inside)
    yield course
    eventually_empty(course)
    with course.sessions() as session:
        assert set(session.scalars(select(Job.state))) == {"completed"}
        assert set(Counter(session.scalars(select(Attempt.job_id))).values()) == {1}


def places(course: Course) -> list[str]:
    with course.sessions() as session:
        return list(session.scalars(select(Reservation.state)))


def test_what_a_failed_tick_has_sent_keeps_its_room_until_it_has_ended(full: Course) -> None:
    full.tick()
    assert len(full.inside) == CAPACITY.max_batch_size
    assert places(full) == CAPACITY.max_batch_size * ["draining"]


def test_what_ends_before_its_place_is_noted_leaves_none(
    full: Course, monkeypatch: pytest.MonkeyPatch
) -> None:
    tick, strays = ticks.tick, list(full.inside)

    def end_all(*given: Any, **named: Any) -> ticks.TickResult:  # noqa: ANN401  # as it takes them
        result = tick(*given, **named)
        for each in strays:
            full.end_request(each)
            full.hand_in(each)
        for each in strays:
            assert each.early is not None
            assert each.early.left.result(PATIENCE), "it has left, and closed no place"
        return result

    with monkeypatch.context() as patch:
        patch.setattr(ticks, "tick", end_all)
        full.tick()
    eventually(lambda: "draining" not in places(full))


def eventually_empty(course: Course) -> None:
    """Every place is left in the end."""
    loop.run(nothing(), timeout=PATIENCE)
    for _ in range(50):
        course.tick()
        with course.sessions() as session:
            if not list(session.scalars(select(Reservation))) and not course.inside:
                return
        while course.inside:
            course.end_request(course.inside[0])
        while course.ended:
            course.hand_in(course.ended[0])
    raise AssertionError("a place is left over")


async def nothing() -> None:
    """Let what the loop has to do be done before."""
