"""However the jobs of a tree end, and whoever asks for what meanwhile, each parent is freed once, last."""

from collections.abc import Callable
from datetime import timedelta
from uuid import UUID

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session, sessionmaker

import ending
from jobs import leases, lifecycle, summaries
from jobs.database import database_now
from jobs.models import DEFAULT_TENANT, Job, Reservation, Summary, SummaryNode, WebhookEvent
from jobs.starting import Claim
from jobs.states import TERMINAL, StopReason
from jobs.states.summary import TERMINAL as ENDED
from jobs.states.summary import OnGap
from jobs.trees import counts as tree_counts
from jobs.trees.counts import TreeCounts
from summary_support import (
    SMALL,
    claim_next,
    complete,
    create,
    fail,
    failed_document,
    plan_all,
    prepare_all,
    ready_document,
    text_of,
)
from support import empty_database, num_examples, register_engine

End = Callable[[Session, Claim], None]
WINDOW = timedelta(hours=1)
LATER = timedelta(hours=2)


class Trees(RuleBasedStateMachine):
    """Moves trees on in committed transactions and looks at every step how each node stands."""

    sessions: sessionmaker[Session]

    def __init__(self) -> None:
        super().__init__()
        self.running: list[Claim] = []
        self.freed: set[UUID] = set()
        self.ended: dict[UUID, str] = {}

    @initialize(
        sizes=st.lists(st.integers(0, 8), min_size=1, max_size=3),
        combine=st.booleans(),
        on_gap=st.sampled_from(OnGap),
        has_window=st.booleans(),
    )
    def begin(self, sizes: list[int], on_gap: OnGap, *, combine: bool, has_window: bool) -> None:
        with self.sessions.begin() as session:
            empty_database(session)
            register_engine(session, capacity=SMALL)
            found = [
                ready_document(session, text_of(1 + 290 * size, name=f"d{place}x"))
                if size
                else failed_document(session)
                for place, size in enumerate(sizes)
            ]
            window = WINDOW if has_window else None
            create(session, *found, combine=combine, on_gap=on_gap, window=window)

    @rule()
    def plan(self) -> None:
        with self.sessions.begin() as session:
            plan_all(session)

    @rule()
    def prepare(self) -> None:
        with self.sessions.begin() as session:
            prepare_all(session)

    @rule()
    def start(self) -> None:
        with self.sessions.begin() as session:
            if (claimed := claim_next(session)) is not None:
                self.running.append(claimed)

    @rule(place=st.integers(0, 9), text=st.sampled_from(["a summary", ""]))
    def complete(self, place: int, text: str) -> None:
        self._end(place, lambda session, claimed: complete(session, claimed, text))

    @rule(place=st.integers(0, 9), code=st.sampled_from(["engine_error", "context_length_exceeded"]))
    def fail(self, place: int, code: str) -> None:
        self._end(place, lambda session, claimed: fail(session, claimed, code))

    @rule()
    def lose_workers(self) -> None:
        """Silent workers' jobs go back to the queue, and fail when that was too often."""
        with self.sessions.begin() as session:
            past = database_now(session) - timedelta(seconds=1)
            session.execute(update(Job).where(Job.state == "running").values(lease_expires_at=past))
            lifecycle.rescue(session, now=database_now(session), max_rescues=1)
            session.query(Reservation).delete()
        self.running.clear()

    @rule(place=st.integers(0, 9))
    def cancel_a_job(self, place: int) -> None:
        with self.sessions.begin() as session:
            found = session.scalars(select(Job.id).order_by(Job.id)).all()
            if found:
                lifecycle.cancel(session, found[place % len(found)], tenant_id=DEFAULT_TENANT)

    @rule(place=st.integers(0, 9))
    def cancel(self, place: int) -> None:
        with self.sessions.begin() as session:
            found = session.scalars(select(Summary.id).order_by(Summary.id)).all()
            summaries.cancel(session, found[place % len(found)], tenant_id=DEFAULT_TENANT)

    @rule(place=st.integers(0, 9))
    def plan_by_the_release_before(self, place: int) -> None:
        """It counts nothing; nor do workers of that release."""
        with self.sessions.begin() as session:
            found = session.scalars(select(Summary).where(Summary.finalized_at.is_(None))).all()
            if found:
                found[place % len(found)].num_completed = None

    @rule()
    def stop_jobs(self) -> None:
        with self.sessions.begin() as session:
            self._stop_jobs(session)

    @rule()
    def let_windows_pass(self) -> None:
        with self.sessions.begin() as session:
            now = database_now(session) + LATER
            summaries.expire(session, session.scalars(summaries.overdue(now)).all(), now=now)
            lifecycle.expire(session, now=database_now(session) + LATER)

    @invariant()
    def each_parent_is_freed_once_and_after_its_last_child(self) -> None:
        with self.sessions() as session:
            for summary in session.scalars(select(Summary)):
                self._check(session, summary)

    def teardown(self) -> None:
        """Drive on whatever was asked: all of it ends, with one event each and nothing left over."""
        for _ in range(400):
            with self.sessions.begin() as session:
                self._move_on(session)
            if not self.running:
                break
            with self.sessions.begin() as session:
                while self.running:
                    self._finish(session, self.running.pop(), complete)
        with self.sessions() as session:
            for summary in session.scalars(select(Summary)):
                assert summary.state in ENDED, (summary.state, summary.stop_reason)
                told = select(func.count()).where(WebhookEvent.summary_id == summary.id)
                assert session.scalar(told) == 1
            left = select(func.count()).select_from(Job).where(Job.finalized_at.is_(None))
            assert session.scalar(left) == 0

    def _end(self, place: int, end: End) -> None:
        if not self.running:
            return
        claimed = self.running.pop(place % len(self.running))
        with self.sessions.begin() as session:
            self._finish(session, claimed, end, heeds_stop=bool(place % 2))

    def _finish(self, session: Session, claimed: Claim, end: End, *, heeds_stop: bool = False) -> None:
        stops = leases.read_stops(session, [claimed.lease])
        stop = stops.get(claimed.lease.lease_id)
        if stop in {StopReason.CANCEL, StopReason.EXPIRE} and heeds_stop:
            ending.finish_stopped(session, claimed.lease, stop, None)
            session.query(Reservation).filter_by(lease_id=claimed.lease.lease_id).delete()
        elif claimed.lease.lease_id in stops:
            end(session, claimed)

    def _move_on(self, session: Session) -> None:
        """Take every step that leads to running jobs, as far as there is one."""
        plan_all(session)
        self._stop_jobs(session)
        prepare_all(session)
        while (claimed := claim_next(session)) is not None:
            self.running.append(claimed)

    def _stop_jobs(self, session: Session) -> None:
        for summary_id, tenant_id in summaries.find_stopping(session):
            summaries.stop_jobs(session, summary_id, tenant_id=tenant_id)

    def _check(self, session: Session, summary: Summary) -> None:
        if summary.id in self.ended:
            assert self.ended[summary.id] == summary.state, "it ends once"
        elif summary.state in ENDED:
            self.ended[summary.id] = summary.state
        query = select(SummaryNode, Job).join(Job, Job.id == SummaryNode.job_id)
        tree = {
            node.number: (node, job)
            for node, job in session.execute(query.where(SummaryNode.summary_id == summary.id))
        }
        self._check_counts(session, summary, list(tree.values()))
        for node, job in tree.values():
            children = [child for below, child in tree.values() if below.parent == node.number]
            if not children:
                continue
            if job.state == "blocked":
                assert job.id not in self.freed, "freed once"
                is_due = all(child.state in TERMINAL for child in children)
                assert not is_due or summary.stop_reason, "it is freed with its last child"
            elif job.state not in {"cancelled", "expired"}:
                self.freed.add(job.id)
                assert all(child.state in TERMINAL for child in children), "never before its last child"
        if tree and summary.state == "completed":
            assert all(job.state in TERMINAL for _, job in tree.values())

    def _check_counts(self, session: Session, summary: Summary, tree: list[tuple[SummaryNode, Job]]) -> None:
        """Compare the stored counts with the jobs; a replaced job is no node's, but has used tokens."""
        jobs = session.scalars(select(Job).where(Job.summary_id == summary.id)).all()
        begun = [job for job in jobs if job.started_at is not None]
        assert tree_counts.read(session, [summary]).get(summary.id, TreeCounts()) == TreeCounts(
            num_jobs=len(tree),
            num_completed=sum(job.state == "completed" for _, job in tree),
            num_failed=sum(job.state in TERMINAL - {"completed"} for _, job in tree),
            num_running=sum(job.state == "running" for job in jobs),
            ended_tokens=sum(node.tokens for node, job in tree if job.finalized_at is not None),
            planned_tokens=sum(node.tokens for node, _ in tree),
            prompt_tokens=sum(job.prompt_tokens or 0 for job in begun),
            cached_tokens=sum(job.cached_tokens or 0 for job in jobs),
            completion_tokens=sum(job.completion_tokens for job in jobs),
        )


@pytest.mark.timeout(600)
def test_trees_always_end_and_free_each_parent_exactly_once(sessions: sessionmaker[Session]) -> None:
    class Bound(Trees):
        pass

    Bound.sessions = sessions
    run_state_machine_as_test(
        Bound,
        settings=settings(
            max_examples=num_examples(40),
            stateful_step_count=25,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.explicit, Phase.generate],
        ),
    )
