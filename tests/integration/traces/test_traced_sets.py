"""A batch, or a tree, is one trace: its own span, with those of so many of its jobs, the last among them."""

from collections import defaultdict
from dataclasses import replace
from itertools import product

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session, sessionmaker

from batch_support import Service, lines, tools, validate_next
from jobs.models import Batch, Job, Summary, WebhookEvent
from jobs.traces import ended, subjects
from jobs.traces.context import TraceContext
from jobs.traces.span import Span
from summary_support import (
    SMALL,
    TOOLS,
    claim_next,
    create,
    fail,
    nodes_of,
    plan_next,
    prepare_all,
    ready_document,
    run_to_end,
    text_of,
)
from support import register_engine

Sessions = sessionmaker[Session]
CALLER = TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")


def by_name(spans: list[Span]) -> dict[str, list[Span]]:
    found: dict[str, list[Span]] = defaultdict(list)
    for each in spans:
        assert each.context.trace_id == CALLER.trace_id
        found[each.name.split()[0]].append(each)
    return dict(found)


def tree(session: Session, *, max_traced: int) -> Summary:
    """A planned summary of several chunks, below a caller's span."""
    register_engine(session, capacity=SMALL)
    document = ready_document(session, text_of(2000))
    (summary,) = create(session, document, webhook_url="https://example.com/hook")
    summary.traceparent = str(CALLER)
    session.flush()
    plan_next(session, replace(TOOLS, max_traced=max_traced))
    session.refresh(summary)
    return summary


def test_all_jobs_of_a_small_tree_are_below_its_span(session: Session) -> None:
    summary = tree(session, max_traced=1000)
    run_to_end(session)
    session.refresh(summary)
    assert summary.state == "completed"
    found = by_name(list(ended.take(session).spans))
    num_jobs = len(nodes_of(session, summary))
    (own,), (plan,) = found["summary"], found["plan"]
    assert (own.parent_id, plan.parent_id) == (CALLER.span_id, own.context.span_id)
    assert (own.started_at, own.ended_at) == (summary.created_at, summary.finalized_at)
    assert plan.ended_at == summary.planned_at
    assert own.attributes["longbatch.summary.num_jobs"] == num_jobs
    assert len(found["job"]) == len(found["chat"]) == num_jobs
    assert {each.parent_id for each in found["job"]} == {own.context.span_id}
    event = session.scalars(select(WebhookEvent).where(WebhookEvent.summary_id == summary.id)).one()
    assert event.traceparent == str(own.context)
    assert not ended.take(session).row_ids, "it is written once"


def test_a_large_tree_has_so_many_jobs_in_its_trace_and_the_root(session: Session) -> None:
    summary = tree(session, max_traced=3)
    nodes = nodes_of(session, summary)
    traced = [node.number for node, job in nodes if job.traceparent is not None]
    assert len(nodes) > 6
    assert len(traced) == 3
    assert traced[-1] == nodes[-1][0].number


def test_a_second_attempt_at_a_job_of_a_tree_stays_in_the_trace(session: Session) -> None:
    summary = tree(session, max_traced=1000)
    prepare_all(session)
    claimed = claim_next(session)
    assert claimed is not None
    fail(session, claimed)
    assert all(job.traceparent is not None for _, job in nodes_of(session, summary))
    assert session.get_one(Job, claimed.job.id) not in [job for _, job in nodes_of(session, summary)]


def test_a_tree_without_a_trace_gives_none_to_its_jobs(session: Session) -> None:
    register_engine(session, capacity=SMALL)
    (summary,) = create(session, ready_document(session, text_of(2000)))
    plan_next(session, replace(TOOLS, max_traced=1000))
    assert {job.traceparent for _, job in nodes_of(session, summary)} == {None}


@pytest.mark.parametrize(("max_traced", "traced"), [(0, []), (2, [5, 10]), (1000, list(range(1, 11)))])
def test_lines_of_a_batch_are_traced_evenly(sessions: Sessions, max_traced: int, traced: list[int]) -> None:
    service = Service(sessions, tools(max_traced=max_traced))
    batch_id = service.create(lines(10))
    with sessions.begin() as session:
        session.execute(update(Batch).values(traceparent=str(CALLER)))
    assert validate_next(sessions, service.tools)
    service.settle()
    service.complete()
    service.settle()
    assert service.batch(batch_id).state == "completed"
    assert [job.batch_line for job in service.jobs(batch_id) if job.traceparent] == traced
    with sessions.begin() as session:
        found = by_name(list(ended.take(session).spans))
    (own,) = found["batch"]
    assert own.attributes["longbatch.batch.num_completed"] == 10
    assert {each.parent_id for each in [*found["validate"], *found.get("job", [])]} == {own.context.span_id}
    assert [each.attributes["longbatch.batch.line"] for each in found.get("job", [])] == traced


@pytest.mark.parametrize(
    ("max_traced", "traced"),
    [(1, [(2, 3)]), (5, [(1, 1), (1, 3), (2, 1), (2, 3)]), (8, [*product((1, 2), range(4))])],
)
def test_lines_of_many_jobs_do_not_outgrow_the_trace(
    sessions: Sessions, max_traced: int, traced: list[tuple[int, int]]
) -> None:
    service = Service(sessions, tools(max_traced=max_traced))
    batch_id = service.create(lines(2, n=4, temperature=1.0))
    with sessions.begin() as session:
        session.execute(update(Batch).values(traceparent=str(CALLER)))
    assert validate_next(sessions, service.tools)
    service.settle()
    jobs = [job for job in service.jobs(batch_id) if job.traceparent]
    assert sorted((job.batch_line or 0, job.choice) for job in jobs) == traced


def test_a_refused_file_is_a_failed_batch_in_the_trace(sessions: Sessions) -> None:
    service = Service(sessions, tools(max_traced=10))
    service.create(b"not json\n")
    with sessions.begin() as session:
        session.execute(update(Batch).values(traceparent=str(CALLER)))
    assert validate_next(sessions, service.tools)
    service.settle()
    with sessions.begin() as session:
        found = by_name(list(ended.take(session).spans))
    assert found["batch"][0].error_type == "invalid_file"
    assert found.keys() == {"batch", "validate"}


def test_what_is_given_back_of_each_kind_is_taken_again(sessions: Sessions) -> None:
    service = Service(sessions, tools(max_traced=10))
    service.create(b"not json\n")
    assert validate_next(sessions, service.tools)
    service.settle()
    with sessions.begin() as session:
        tree(session, max_traced=10)
        run_to_end(session)
        session.execute(update(Batch).values(traceparent=str(CALLER)))
        taken = ended.take(session)
        assert taken.row_ids.keys() == {Job, Summary, Batch}
        ended.give_back(session, taken)
        again = ended.take(session)
        assert {table: set(each) for table, each in again.row_ids.items()} == {
            table: set(each) for table, each in taken.row_ids.items()
        }


def test_the_context_of_a_subject_without_a_trace_is_none(session: Session) -> None:
    register_engine(session, capacity=SMALL)
    (summary,) = create(session, ready_document(session, text_of(20)))
    assert subjects.context_of(summary) is None
    assert subjects.trace_of_jobs(summary, max_jobs=5) is None
