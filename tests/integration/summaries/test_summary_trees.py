"""Trees of summaries in the database: planned whole, freed once, ended with their last job."""

from datetime import timedelta

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

import ending
from jobs import deletion, documents, lifecycle, summaries
from jobs.database import database_now
from jobs.errors import ConflictError
from jobs.models import DEFAULT_TENANT, Job, Summary, WebhookEvent
from jobs.models.document import Document
from jobs.states import JobState
from jobs.states.summary import OnGap, SummaryState
from jobs.summaries import queries
from summary_support import (
    SMALL,
    claim_next,
    complete,
    create,
    fail,
    failed_document,
    nodes_of,
    plan_all,
    planned,
    prepare_all,
    ready_document,
    run_to_end,
    text_of,
)
from support import register_engine


def test_a_document_that_fits_is_one_job_with_the_whole_text(session: Session) -> None:
    summary = planned(session, 300)
    ((node, job),) = nodes_of(session, summary)
    assert (node.kind, node.parent, job.state) == ("whole", None, "preparing")
    assert (node.start_char, node.end_char) == (0, len(text_of(300, name="w300x")))
    run_to_end(session)
    session.refresh(summary)
    assert summary.state == SummaryState.COMPLETED
    assert queries.describe(session, summary)["summary"] == "a summary"


def test_a_long_document_is_a_tree_whose_joins_wait(session: Session) -> None:
    summary = planned(session)
    tree = nodes_of(session, summary)
    assert summary.plan is not None
    assert {job.state for node, job in tree if node.level == 0} == {"preparing"}
    assert {job.state for node, job in tree if node.level > 0} == {"blocked"}
    assert all(job.text_id is None for _, job in tree)
    ids = [job.id for _, job in tree]
    assert ids == sorted(ids), "age is the order of the tree"
    assert summary.root_job_id == ids[-1]
    assert tree[-1][0].level == summary.plan["levels"] - 1  # type: ignore[operator]  # a number


def test_a_tree_completes_with_its_root_and_publishes_one_event(session: Session) -> None:
    summary = planned(session)
    run_to_end(session)
    session.refresh(summary)
    assert summary.state == SummaryState.COMPLETED
    kinds = session.scalars(select(WebhookEvent.type).where(WebhookEvent.summary_id == summary.id)).all()
    assert list(kinds) == ["summary.completed"]
    told = select(func.count()).where(WebhookEvent.job_id.is_not(None), WebhookEvent.payload.is_not(None))
    assert session.scalar(told) == 0, "jobs of trees are told to nobody"
    seen = queries.describe_with_chunks(session, summary)
    assert all(chunk["summary"] == "a summary" for chunk in seen["chunks"])
    assert seen["progress"]["completed"] == seen["progress"]["jobs"] == summary.plan["jobs"]  # type: ignore[index]  # planned
    assert seen["usage"]["completion_tokens"] == 3 * seen["progress"]["jobs"]
    assert seen["usage"]["cached_tokens"] == seen["progress"]["jobs"]


def test_a_failed_chunk_is_tried_once_more_in_its_place(session: Session) -> None:
    summary = planned(session)
    prepare_all(session)
    claimed = claim_next(session)
    assert claimed is not None
    fail(session, claimed)
    node, job = nodes_of(session, summary)[0]
    assert (job.state, node.spare_job_id) == ("preparing", None)
    assert job.id > claimed.job.id
    assert job.text_id == claimed.job.text_id
    others = [other.id for _, other in nodes_of(session, summary)[1:]]
    assert job.id < min(others), "it is next"
    run_to_end(session)
    session.refresh(summary)
    assert summary.state == SummaryState.COMPLETED
    assert queries.describe(session, summary)["gaps"] == []


def test_a_chunk_that_fails_twice_is_a_named_gap(session: Session) -> None:
    summary = planned(session)
    first = nodes_of(session, summary)[0][0]
    for _ in range(2):
        prepare_all(session)
        claimed = claim_next(session)
        assert claimed is not None
        fail(session, claimed)
    run_to_end(session)
    session.refresh(summary)
    assert summary.state == SummaryState.COMPLETED
    (gap,) = queries.describe(session, summary)["gaps"]
    assert (gap["start"], gap["end"]) == (first.start_char, first.end_char)
    assert gap["error"] == {"code": "engine_error", "message": "it broke"}


def test_a_failed_join_leaves_its_chunks_as_gaps(session: Session) -> None:
    summary = planned(session)
    tree = nodes_of(session, summary)
    join = next(node for node, _ in tree if node.level == 1)
    below = [node for node, _ in tree if node.parent == join.number]
    assert join.parent is not None
    while (claimed := _claim(session)) is not None:
        if claimed.job.id in {join.job_id, join.spare_job_id} or claimed.job.task == "summary_reduce":
            is_join = session.scalar(
                text("SELECT number FROM summary_nodes WHERE job_id = :id").bindparams(id=claimed.job.id)
            )
            if is_join == join.number:
                fail(session, claimed)
                continue
        complete(session, claimed)
    session.refresh(summary)
    assert summary.state == SummaryState.COMPLETED
    gaps = queries.describe(session, summary)["gaps"]
    assert [gap["start"] for gap in gaps] == [node.start_char for node in below]


def test_without_gaps_one_lost_chunk_ends_the_summary_and_stops_the_rest(session: Session) -> None:
    summary = planned(session, on_gap=OnGap.FAIL)
    for _ in range(2):
        prepare_all(session)
        claimed = claim_next(session)
        assert claimed is not None
        fail(session, claimed)
    session.refresh(summary)
    assert (summary.state, summary.stop_reason) == ("running", "fail")
    assert not [job for _, job in nodes_of(session, summary) if job.state == "blocked"]
    while summaries.stop_jobs(session, summary.id, tenant_id=DEFAULT_TENANT):
        pass
    session.refresh(summary)
    assert summary.state == SummaryState.FAILED
    assert summary.error is not None
    assert summary.error["code"] == "chunk_failed"


def test_when_every_chunk_fails_the_summary_fails(session: Session) -> None:
    summary = planned(session)
    while (claimed := _claim(session)) is not None:
        fail(session, claimed)
    session.refresh(summary)
    assert summary.state == SummaryState.FAILED
    assert summary.error == {
        "code": "all_parts_failed",
        "message": "None of the parts to be joined could be summarized.",
    }


def test_cancelling_takes_the_whole_tree(session: Session) -> None:
    summary = planned(session)
    prepare_all(session)
    running = claim_next(session)
    assert running is not None
    summaries.cancel(session, summary.id, tenant_id=DEFAULT_TENANT)
    while summaries.stop_jobs(session, summary.id, tenant_id=DEFAULT_TENANT):
        pass
    session.refresh(summary)
    assert summary.state == SummaryState.RUNNING, "one job still has an engine"
    assert ending.release(session, running.lease) == JobState.CANCELLED
    session.refresh(summary)
    assert summary.state == SummaryState.CANCELLED
    assert {job.state for _, job in nodes_of(session, summary)} == {"cancelled"}


def test_a_summary_that_is_not_planned_is_cancelled_at_once(session: Session) -> None:
    register_engine(session, capacity=SMALL)
    (summary,) = create(session, ready_document(session, text_of(50)))
    summaries.cancel(session, summary.id, tenant_id=DEFAULT_TENANT)
    plan_all(session)
    assert summary.state == SummaryState.CANCELLED
    assert session.scalar(select(func.count()).select_from(Job)) == 0


def test_a_tree_whose_window_ends_expires_whole(session: Session) -> None:
    summary = planned(session, window=timedelta(hours=1))
    later = database_now(session) + timedelta(hours=2)
    while lifecycle.expire(session, now=later):
        pass
    session.refresh(summary)
    assert summary.state == SummaryState.EXPIRED
    assert {job.state for _, job in nodes_of(session, summary)} == {"expired"}


def test_a_summary_that_waits_for_its_documents_expires_too(session: Session) -> None:
    (summary,) = create(session, ready_document(session, text_of(50)), window=timedelta(hours=1))
    now = database_now(session) + timedelta(hours=2)
    assert summaries.expire(session, session.scalars(summaries.overdue(now)).all(), now=now) == 1
    assert summary.state == SummaryState.EXPIRED


def test_cancelling_all_jobs_by_filter_ends_the_tree_from_its_leaves_up(session: Session) -> None:
    summary = planned(session)
    num_leaves = sum(node.level == 0 for node, _ in nodes_of(session, summary))
    assert lifecycle.cancel_where(session, [], tenant_id=DEFAULT_TENANT) == num_leaves
    while lifecycle.cancel_where(session, [], tenant_id=DEFAULT_TENANT):
        pass
    session.refresh(summary)
    assert summary.state == SummaryState.CANCELLED


def test_a_document_is_kept_while_a_summary_needs_it(session: Session) -> None:
    register_engine(session, capacity=SMALL)
    document = ready_document(session, text_of(300))
    (summary,) = create(session, document)
    guards = [summaries.guard_document]
    with pytest.raises(ConflictError):
        documents.remove(session, document.id, tenant_id=DEFAULT_TENANT, guards=guards)
    document.expires_at = database_now(session) - timedelta(hours=1)
    session.flush()
    now = database_now(session)
    assert documents.expire(session, now=now, is_needed=summaries.needs_document()) == 0
    plan_all(session)
    run_to_end(session)
    assert documents.expire(session, now=now, is_needed=summaries.needs_document()) == 1
    session.refresh(summary)
    assert summary.state == SummaryState.COMPLETED


def test_an_unreadable_document_is_a_gap_of_a_combined_summary(session: Session) -> None:
    register_engine(session, capacity=SMALL)
    good, bad = ready_document(session, text_of(700)), failed_document(session)
    (summary,) = create(session, good, bad, combine=True)
    (strict,) = create(session, good, bad, combine=True, on_gap=OnGap.FAIL)
    plan_all(session)
    run_to_end(session)
    for each in (summary, strict):
        session.refresh(each)
    assert (summary.state, strict.state) == ("completed", "failed")
    assert strict.error == bad.error
    (gap,) = queries.describe(session, summary)["gaps"]
    assert gap["error"] == bad.error
    assert gap["start"] is None


def test_chunks_name_the_pages_that_they_stand_on(session: Session) -> None:
    register_engine(session, capacity=SMALL)
    body = text_of(2000)
    pages = [0, *(body.index(f"w{number} ") for number in range(100, 2000, 100))]
    (summary,) = create(session, ready_document(session, body, pages=pages))
    plan_all(session)
    for chunk in queries.list_chunks(session, summary.id):
        first = sum(start <= chunk["start"] for start in pages)
        last = sum(start < chunk["end"] for start in pages)
        assert chunk["pages"] == [first, last]


def test_a_summary_goes_with_its_jobs_and_texts_and_not_before_it_has_ended(session: Session) -> None:
    summary = planned(session)
    with pytest.raises(ConflictError):
        summaries.remove(session, summary.id, tenant_id=DEFAULT_TENANT)
    with pytest.raises(ConflictError):
        deletion.remove(session, summary.root_job_id, tenant_id=DEFAULT_TENANT)  # type: ignore[arg-type]  # planned
    run_to_end(session)
    later = database_now(session) + timedelta(days=1)
    assert deletion.prune_jobs(session, before=later) == 0
    while summaries.prune(session, before=later):
        pass
    for table in ("jobs", "texts", "results", "summary_nodes", "summary_documents", "summaries"):
        assert session.scalar(text(f"SELECT count(*) FROM {table}")) == 0  # noqa: S608  # ours
    assert session.scalar(select(func.count()).select_from(Document)) == 1


def test_what_a_tree_takes_of_the_quota_is_given_back_with_its_end(session: Session) -> None:
    summary = planned(session)
    held = select(func.sum(Job.reserved_tokens)).where(Job.finalized_at.is_(None))
    assert (session.scalar(held) or 0) > 2000
    run_to_end(session)
    assert session.scalar(held) is None
    used = session.execute(text("SELECT sum(num_jobs), sum(completion_tokens) FROM usage_entries")).one()
    assert summary.plan is not None
    assert tuple(used) == (summary.plan["jobs"], 3 * summary.plan["jobs"])  # type: ignore[operator]  # a number


def _claim(session: Session):  # type: ignore[no-untyped-def]  # noqa: ANN202  # a claim or None
    prepare_all(session)
    return claim_next(session)


def test_summaries_of_one_tenant_are_made_one_after_another(session: Session) -> None:
    register_engine(session, capacity=SMALL)
    documents_ = [ready_document(session, text_of(1500, name=f"d{number}x")) for number in range(4)]
    made = create(session, *documents_)
    plan_all(session)
    order: list[Summary] = []
    while (claimed := _claim(session)) is not None:
        complete(session, claimed)
        order += [each for each in made if each not in order and _state(session, each) == "completed"]
        behind = [each for each in made if each not in order]
        began = [each for each in behind if _num_started(session, each)]
        assert len(began) <= 1, "nobody begins while an older one can go on"
    assert order == made


def _state(session: Session, summary: Summary) -> str:
    session.refresh(summary)
    return summary.state


def _num_started(session: Session, summary: Summary) -> int:
    started = select(func.count()).where(Job.summary_id == summary.id, Job.started_at.is_not(None))
    return session.scalar(started) or 0
