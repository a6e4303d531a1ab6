"""Summaries end despite a full quota, a small limit or a tokenizer that panics."""

from datetime import timedelta
from uuid import UUID

from sqlalchemy import func, select, text, update
from sqlalchemy.orm import Session, sessionmaker

from jobs import summaries
from jobs.database import database_now
from jobs.models import DEFAULT_TENANT, Job, Summary, TenantTurn
from jobs.prompts import store
from jobs.prompts.store import CountedPrompt, NewText
from jobs.settings import LimitSettings
from jobs.summaries import SummarySpec
from jobs.summaries.planning import Planning, PlanningTools
from jobs.summaries.tree import MAX_CHUNKS
from summary_support import SMALL, Words, create, plan_all, plan_next, planned, ready_document, text_of
from support import MODEL, prepare_next, register_engine, runner_of

_OTHER = UUID(int=7)
_COUNTED = {"finish_reason": "stop", "prompt_tokens": 1}


def tools_of(**limits: int) -> PlanningTools:
    """The tools where every tenant has these limits."""
    return PlanningTools(counter=Words(), default_capacity=SMALL, limits=LimitSettings(**limits))


def other_tenant(session: Session) -> UUID:
    """A second tenant."""
    session.execute(
        text("INSERT INTO tenants (id, name) VALUES (:id, :name)"), {"id": _OTHER, "name": f"tenant {_OTHER}"}
    )
    return _OTHER


def test_a_tree_with_more_jobs_than_its_tenant_may_ever_have_fails(session: Session) -> None:
    register_engine(session, capacity=SMALL)
    document = ready_document(session, text_of(2000))
    (summary,) = create(session, document)
    plan_next(session, tools_of(max_jobs=3))
    session.refresh(summary)
    assert (summary.state, (summary.error or {}).get("code")) == ("failed", "job_limit_exceeded")


def test_a_text_of_too_many_chunks_fails_before_it_is_cut(session: Session) -> None:
    register_engine(session, capacity=SMALL)
    document = ready_document(session, text_of(100))
    document.num_tokens = 64 * MAX_CHUNKS  # as counted; cutting would find that it is not so
    (summary,) = create(session, document, chunk_tokens=64)
    plan_all(session)
    session.refresh(summary)
    assert (summary.state, (summary.error or {}).get("code")) == ("failed", "too_many_chunks")


def test_a_full_quota_keeps_no_other_tenant_waiting_and_no_round_from_ending(
    sessions: sessionmaker[Session],
) -> None:
    with sessions.begin() as session:
        running = planned(session, 2000)
        tight = tools_of(max_jobs=_num_jobs(session, running) + 1)
        waiting = [
            create(session, ready_document(session, text_of(1500, name=f"d{number}x")))[0].id
            for number in range(5)
        ]
        tenant_id = other_tenant(session)
        document = ready_document(session, text_of(100), tenant_id=tenant_id)
        spec = SummarySpec(document_ids=[document.id], model=MODEL)
        (other,) = summaries.create(session, spec, tenant_id=tenant_id)
        other_id = other.id
    assert len(runner_of(sessions).run_some(Planning(tight), limit=20)) == 2, "one of each tenant"
    with sessions.begin() as session:
        states = {row.id: row.state for row in session.execute(select(Summary.id, Summary.state))}
        assert states[other_id] == "running"
        assert {states[each] for each in waiting} == {"preparing"}
        paused = select(TenantTurn.tenant_id).where(TenantTurn.paused_until.is_not(None))
        assert session.scalars(paused).all() == [DEFAULT_TENANT]
        assert set(session.scalars(select(Summary.num_plannings).where(Summary.id.in_(waiting)))) == {0}


def test_a_text_for_which_there_is_no_room_is_not_even_cut(session: Session) -> None:
    class Counting(Words):
        num_counted = 0

        def count_text(self, text: str) -> int:
            self.num_counted += 1
            return super().count_text(text)

    register_engine(session, capacity=SMALL)
    taken = planned(session, 2000)
    counter = Counting()
    full = LimitSettings(max_enqueued_tokens=_num_tokens(session, taken) + 1000)
    (summary,) = create(session, ready_document(session, text_of(1500)))
    plan_next(session, PlanningTools(counter, SMALL, full))
    session.refresh(summary)
    assert (summary.state, counter.num_counted) == ("preparing", 0)
    session.execute(update(TenantTurn).values(paused_until=None))
    plan_next(session)
    session.refresh(summary)
    assert summary.state == "running"


def test_a_completed_summary_has_its_text_until_it_is_pruned(session: Session) -> None:
    register_engine(session, capacity=SMALL)
    (summary,) = create(session, ready_document(session, text_of(30_000)), chunk_tokens=64)
    plan_all(session)
    session.refresh(summary)
    assert _num_jobs(session, summary) > 500
    end = {"state": "completed", "finalized_at": func.clock_timestamp()} | _COUNTED
    run_to_end_of = update(Job).where(Job.summary_id == summary.id)
    (kept,) = store.store(session, [NewText("[]")], tenant_id=DEFAULT_TENANT).ids.values()
    session.execute(run_to_end_of.values(**end, text_id=kept))
    session.execute(update(Summary).values(state="completed", finalized_at=func.clock_timestamp()))
    root_id, later = summary.root_job_id, database_now(session) + timedelta(days=1)
    while summaries.prune(session, before=later):
        left = session.scalar(select(func.count()).select_from(Summary))
        assert (session.get(Job, root_id, populate_existing=True) is None) == (left == 0)
    assert session.scalar(select(func.count()).select_from(Job)) == 0


class _Panic(BaseException):
    """What a tokenizer written in Rust raises."""


def test_a_chunk_that_upsets_the_tokenizer_fails_alone(session: Session) -> None:
    class Panicking(Words):
        def count_prompt(self, canonical: str, *, limit: int | None = None) -> CountedPrompt:
            if "poison" in canonical:
                raise _Panic
            return super().count_prompt(canonical, limit=limit)

    register_engine(session, capacity=SMALL)
    create(session, ready_document(session, "poison " * 20))
    create(session, ready_document(session, text_of(100)))
    plan_all(session)
    counter = Panicking()
    states = []
    for _ in range(2):
        job = prepare_next(session, counter, default_capacity=SMALL)
        assert job is not None
        states.append(job.state)
    assert states == ["failed", "queued"]


def _num_jobs(session: Session, summary: Summary) -> int:
    return session.scalar(select(func.count()).where(Job.summary_id == summary.id)) or 0


def _num_tokens(session: Session, summary: Summary) -> int:
    return session.scalar(select(func.sum(Job.reserved_tokens)).where(Job.summary_id == summary.id)) or 0
