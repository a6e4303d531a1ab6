"""A worker that ticks, whose engine does what a test or chance says."""

import random
import threading
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, cast
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session, sessionmaker

from claiming.desks import STOPPED
from jobs import lifecycle, starting
from jobs.database import transaction
from jobs.engines import reservations
from jobs.models import DEFAULT_TENANT, Job, Reservation
from jobs.prompts.store import CountedPrompt
from jobs.queries import QueuedJob
from jobs.scheduling import previews
from jobs.scheduling.claims import ClaimResult
from jobs.scheduling.previews import Preview
from jobs.settings import Settings
from jobs.starting import StartedJob
from jobs.transitions import Lease
from support import CAPACITY as TESTED
from support import ENGINE, PATIENCE, POLICY, output_of
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
        self.is_choosing = False

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
        assert len(self.inside) <= len(booked), "every slot in use is booked, also by a tick that failed"

    def cancel(self, job_id: UUID) -> None:
        with transaction(self.sessions) as session:
            if session.get_one(Job, job_id).state == "queued":
                lifecycle.cancel(session, job_id, tenant_id=DEFAULT_TENANT)


def eventually_empty(course: Course) -> None:
    """Every place is left in the end."""
    loop.run(nothing(), timeout=PATIENCE)
    for _ in range(50):
        course.tick()
        with course.sessions() as session:
            is_booked = bool(list(session.scalars(select(Reservation))))
            is_queued = "queued" in set(session.scalars(select(Job.state)))
            if not (is_booked or is_queued or course.inside):
                return
        while course.inside:
            course.end_request(course.inside[0])
        while course.ended:
            course.hand_in(course.ended[0])
    raise AssertionError("a place is left over")


async def nothing() -> None:
    """Let what the loop has to do be done before."""
