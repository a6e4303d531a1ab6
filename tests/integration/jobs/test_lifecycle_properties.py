"""Any sequence of verbs, by live and by stale workers, keeps every CHECK and every promise."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session, sessionmaker

import ending
from claiming import claims
from jobs import deletion, lifecycle, submission
from jobs.checkpoints import Output
from jobs.database import database_now
from jobs.engines import reservations
from jobs.models import DEFAULT_TENANT, AccountShard, Attempt, Engine, Job, Reservation, Result, WebhookEvent
from jobs.scheduling.sizing import ClaimPolicy
from jobs.sharing import Sharing, ends
from jobs.states import TERMINAL, FinishReason, StopReason
from jobs.submission import Submitter
from jobs.transitions import Lease
from support import (
    ERROR,
    LATER,
    SMALL,
    JobMachine,
    empty_database,
    output_of,
    places,
    register_engine,
    run_on,
    spec,
)

ENGINES = ("engine-a", "engine-b")
TERMS = ClaimPolicy(lease=timedelta(seconds=60), max_rescues=3)
# Of jobs that an engine had, unlike those that got another one's result.
_RAN = (Job.started_at.is_not(None), or_(Job.state != "completed", Job.engine_name.is_not(None)))
_PAID = Job.prompt_tokens - func.coalesce(Job.cached_tokens, 0) + Job.completion_tokens


class Life(JobMachine):
    """Live and stale workers of two engines, and equal requests."""

    def __init__(self) -> None:
        super().__init__()
        self.ended: dict[object, tuple[str, object]] = {}
        self.first: set[Lease] = set()
        self.paid_for_deleted = 0
        with self.sessions.begin() as session:
            empty_database(session)
            for name in ENGINES:
                register_engine(session, name, SMALL)

    def lease(self, place: int) -> Lease | None:
        return self.leases[place % len(self.leases)] if self.leases else None

    def is_current(self, session: Session, lease: Lease) -> bool:
        held = select(Job.id).where(Job.id == lease.job_id, Job.lease_id == lease.lease_id)
        return session.scalar(held) is not None

    @rule(
        sizes=st.lists(st.sampled_from([None, 10, 400, 1000, 1001]), min_size=1, max_size=6),
        max_tokens=st.integers(1, 300),
        rank=st.integers(-1, 1),
    )
    def submit(self, sizes: list[int | None], max_tokens: int, rank: int) -> None:
        window = timedelta(minutes=4) if max_tokens % 2 else None
        url = "https://example.com/x"
        given = [
            spec(size, max_tokens=max_tokens, rank=rank, window=window, webhook_url=url) for size in sizes
        ]
        with self.sessions.begin() as session:
            submission.submit(session, given, Submitter(DEFAULT_TENANT, SMALL))

    @rule(
        prompt=st.sampled_from(["a", "b"]),
        num=st.integers(1, 4),
        rank=st.integers(-1, 1),
        is_counted=st.booleans(),
        has_window=st.booleans(),
    )
    def submit_equal(self, prompt: str, num: int, rank: int, *, is_counted: bool, has_window: bool) -> None:
        window = timedelta(minutes=4) if has_window else None
        size = 10 if is_counted else None
        one = spec(
            size, prompt=prompt, rank=rank, window=window, webhook_url="https://e.com/x", sharing=Sharing()
        )
        with self.sessions.begin() as session:
            submission.submit(session, [one] * num, Submitter(DEFAULT_TENANT, SMALL))

    @rule()
    def settle_twins(self) -> None:
        with self.sessions.begin() as session:
            ends.settle(session, session.scalars(ends.left_alone()).all())

    @rule(name=st.sampled_from(ENGINES))
    def fill(self, name: str) -> None:
        while True:
            with self.sessions.begin() as session:
                claimed = claims.claim(session, name, TERMS)
            if claimed is None:
                return
            self.leases.append(claimed.lease)
            self.first |= {claimed.lease} if claimed.is_first else set()

    def output(self, lease: Lease, cached: int | None) -> Output:
        """One token; a job's first run says what its engine had of the prompt, or not."""
        return replace(output_of("x", 1), cached_tokens=cached if lease in self.first else None)

    @rule()
    def lose_workers(self) -> None:
        """What silent workers held runs elsewhere, while they still believe that they hold it."""
        self.rescue()
        for name in ENGINES:
            self.fill(name)

    @rule(
        place=places,
        verb=st.sampled_from(["complete", "fail", "cancel", "expire", "release", "retry", "progress"]),
        cached=st.sampled_from([None, 0, 1]),
    )
    def write(self, place: int, verb: str, cached: int | None = None) -> None:
        lease = self.lease(place)
        if lease is None:
            return
        with self.sessions.begin() as session:
            current, output = self.is_current(session, lease), self.output(lease, cached)
            done = {
                "complete": lambda: ending.complete(session, lease, output, FinishReason.STOP),
                "fail": lambda: ending.fail(session, lease, ERROR, output),
                "cancel": lambda: ending.finish_stopped(session, lease, StopReason.CANCEL, output),
                "expire": lambda: ending.finish_stopped(session, lease, StopReason.EXPIRE, None),
                "release": lambda: ending.release(session, lease, output),
                "retry": lambda: ending.retry(
                    session, lease, ERROR, max_attempts=2, backoff=timedelta(microseconds=1)
                ),
                "progress": lambda: ending.report_progress(session, lease, completion_tokens=1),
            }[verb]()
            assert bool(done) == current, "exactly the holder of the lease writes"
            if verb != "progress":
                reservations.close(session, lease.lease_id)

    @rule(place=places)
    def cancel(self, place: int) -> None:
        with self.sessions.begin() as session:
            job_ids = session.scalars(select(Job.id).order_by(Job.id)).all()
            if job_ids:
                lifecycle.cancel(session, job_ids[place % len(job_ids)], tenant_id=DEFAULT_TENANT)

    @rule(verb=st.sampled_from(["cancel", "expire"]))
    def stop_a_leader(self, verb: str) -> None:
        """A caller cancels the run that others wait for, or its window ends; a live worker lets it go."""
        waiting = select(Job.request_digest).where(Job.state == "blocked")
        leads = Job.state.in_(["preparing", "queued", "running"]) & Job.request_digest.in_(waiting)
        with self.sessions.begin() as session:
            leader = session.scalar(select(Job.id).where(leads).order_by(Job.id).limit(1))
            if leader is None:
                return
            if verb == "cancel":
                lifecycle.cancel(session, leader, tenant_id=DEFAULT_TENANT)
            else:
                lifecycle.expire(session, now=database_now(session) + timedelta(minutes=5))
        for place, lease in enumerate(self.leases):
            if lease.job_id == leader:
                self.let_go(place)

    def let_go(self, place: int) -> None:
        """The worker gives a job back whose end was asked for."""
        lease = self.leases[place]
        with self.sessions.begin() as session:
            if self.is_current(session, lease):
                ending.release(session, lease, self.output(lease, None))
                reservations.close(session, lease.lease_id)

    @rule()
    def rescue(self) -> None:
        with self.sessions.begin() as session:
            lifecycle.rescue(session, now=database_now(session) + LATER, max_rescues=TERMS.max_rescues)

    @rule()
    def drain(self) -> None:
        with self.sessions.begin() as session:
            for name in ENGINES:
                rows = reservations.draining(session, name)
                reservations.drained(session, [row.lease_id for row in rows])

    @rule(place=places)
    def delete(self, place: int) -> None:
        with self.sessions.begin() as session:
            job_ids = session.scalars(select(Job.id).order_by(Job.id)).all()
            if not job_ids:
                return
            job_id = job_ids[place % len(job_ids)]
            paid = session.scalar(select(_PAID).where(*_RAN, Job.id == job_id)) or 0
            if deletion.remove(session, job_id, tenant_id=DEFAULT_TENANT):
                self.ended.pop(job_id, None)
                self.paid_for_deleted += paid

    @invariant()
    def reservations_stay_within_the_engine(self) -> None:
        with self.sessions() as session:
            rows = session.execute(
                select(Engine.max_batch_size, Engine.max_blocks, func.count(), func.sum(Reservation.blocks))
                .join(Reservation, Reservation.engine_name == Engine.name)
                .group_by(Engine.name)
            )
            for slots, blocks, held_slots, held_blocks in rows:
                assert held_slots <= slots
                assert held_blocks <= blocks

    @invariant()
    def every_running_job_has_its_reservation(self) -> None:
        with self.sessions() as session:
            running = set(session.scalars(select(Job.lease_id).where(Job.state == "running")))
            held = set(session.scalars(select(Reservation.lease_id).where(Reservation.state == "held")))
            assert running == held

    @invariant()
    def each_run_leaves_one_attempt_once_it_is_over(self) -> None:
        with self.sessions() as session:
            kept = session.execute(select(Attempt.job_id, Attempt.lease_id)).all()
            running = set(session.scalars(select(Job.lease_id).where(Job.state == "running")))
            existing = set(session.scalars(select(Job.id)))
            over = {each for each in self.leases if each.job_id in existing and each.lease_id not in running}
            assert sorted(kept) == sorted((each.job_id, each.lease_id) for each in over)

    @invariant()
    def each_prompt_is_paid_once_without_what_engines_had_and_each_token_once(self) -> None:
        with self.sessions() as session:
            held = (Reservation.lease_id == Job.lease_id) & (Reservation.state == "held")
            unproduced = func.coalesce(Reservation.output_tokens - Job.completion_tokens, 0)
            paid = select(func.sum(_PAID + unproduced)).outerjoin_from(Job, Reservation, held).where(*_RAN)
            total = (session.scalar(paid) or 0) + self.paid_for_deleted
            assert (session.scalar(select(func.sum(AccountShard.served))) or 0) == total

    @invariant()
    def equal_requests_have_one_run_and_twins_alone_wait(self) -> None:
        with self.sessions() as session:
            leading = Job.state.in_(["preparing", "queued", "running"])
            runs = select(func.count()).where(Job.request_digest.is_not(None), leading)
            assert set(session.scalars(runs.group_by(Job.request_digest))) <= {1}
            waiting = session.scalars(select(Job).where(Job.state == "blocked")).all()
            assert all(job.request_digest is not None for job in waiting)

    def teardown(self) -> None:
        """Nothing is left waiting: in the end each job has ended, which the invariants saw or see now."""
        unended = select(func.count()).where(Job.finalized_at.is_(None))
        for _ in range(200):
            with self.sessions() as session:
                if not session.scalar(unended):
                    break
            self.settle_twins()
            self.prepare()
            self.time_passes()
            self.drain()
            for name in ENGINES:
                self.fill(name)
            for place in range(len(self.leases)):
                self.write(place, "complete")
        with self.sessions() as session:
            assert session.scalar(unended) == 0
        self.the_end_is_final_and_published_once()

    @invariant()
    def the_end_is_final_and_published_once(self) -> None:
        with self.sessions() as session:
            rows = session.execute(
                select(Job.id, Job.state, Job.finalized_at, func.array_agg(WebhookEvent.type), Result.job_id)
                .outerjoin(WebhookEvent, WebhookEvent.job_id == Job.id)
                .outerjoin(Result, Result.job_id == Job.id)
                .where(Job.state.in_(sorted(TERMINAL)))
                .group_by(Job.id, Result.job_id)
            )
            for job_id, state, finalized_at, events, result in rows:
                assert self.ended.setdefault(job_id, (state, finalized_at)) == (state, finalized_at)
                assert events == [f"job.{state}"]
                assert state != "completed" or result is not None


@pytest.mark.timeout(300)
def test_any_sequence_of_verbs_keeps_every_check_and_promise(sessions: sessionmaker[Session]) -> None:
    run_on(sessions, Life)
