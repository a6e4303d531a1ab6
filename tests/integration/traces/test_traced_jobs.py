"""The trace of a job is made of its rows: every run is in it, whoever ended it, and no word of a prompt."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session, sessionmaker

import ending
from bench.tracing.receiver import SeenSpan
from cli.stack.ports import free_port
from jobs import lifecycle
from jobs.database import database_now
from jobs.models import Attempt, Job
from jobs.scheduling import tick
from jobs.settings import TraceSettings
from jobs.sharing import Sharing
from jobs.states import JobState
from jobs.traces import ended
from jobs.traces.context import TraceContext
from jobs.traces.export import Collector
from jobs.traces.span import Span
from jobs.transitions import Lease
from support import ENGINE, ERROR, claim_one, job_in, output_of, register_engine, spec, submit_one
from tracing.collector import TraceReceiver, collecting
from worker.traces import TraceWriter

Sessions = sessionmaker[Session]
CALLER = TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
SECRET = "Zanzibar"


@pytest.fixture
def collector() -> Iterator[TraceReceiver]:
    with collecting() as made:
        yield made


class Clock:
    """A clock that a test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def writer_to(
    receiver: TraceReceiver,
    sessions: Sessions,
    *,
    clock: Callable[[], float] | None = None,
    **settings: float | str,
) -> TraceWriter:
    made = Collector(
        TraceSettings.model_validate({"endpoint": receiver.url, "timeout_seconds": 60} | settings)
    )
    return TraceWriter(sessions, made, is_stopping=lambda: False, clock=clock or Clock())


def submitted(session: Session, **fields: Any) -> Job:  # noqa: ANN401  # of each field's type
    return submit_one(session, spec(100, prompt=f"Of {SECRET}", traceparent=str(CALLER), **fields))


def running(session: Session, **fields: Any) -> Lease:  # noqa: ANN401  # of each field's type
    register_engine(session)
    submitted(session, **fields)
    return claim_one(session).lease


def again(session: Session) -> Lease:
    session.execute(update(Job).values(run_after=None))
    return claim_one(session).lease


def completed(session: Session, lease: Lease, *, since_answer: timedelta = timedelta(0)) -> None:
    answer = replace(output_of(f"{SECRET} is an island.", 5), cached_tokens=64)
    done = ending.completed(lease, answer, since_first_token=timedelta(seconds=1), since_answer=since_answer)
    tick.tick(session, ENGINE, None, ended=[done])


def spans_of(session: Session) -> dict[str, list[Span]]:
    found: dict[str, list[Span]] = {}
    for each in ended.take(session).spans:
        found.setdefault(each.name.split()[0], []).append(each)
    return found


def test_a_completed_job_is_a_wait_a_run_and_a_recording_below_its_own_span(session: Session) -> None:
    lease = running(session, sampling={"temperature": 0.5, "seed": 7, "stop": [SECRET]})
    completed(session, lease, since_answer=timedelta(milliseconds=1))
    job = session.scalars(select(Job)).one()
    run = session.scalars(select(Attempt)).one()
    found = spans_of(session)
    assert {name: len(each) for name, each in found.items()} == {"job": 1, "wait": 1, "chat": 1, "record": 1}
    (own,), (wait,), (chat,), (record,) = found["job"], found["wait"], found["chat"], found["record"]
    assert own.parent_id == CALLER.span_id
    assert {each.context.trace_id for each in (own, wait, chat, record)} == {CALLER.trace_id}
    assert {each.parent_id for each in (wait, chat, record)} == {own.context.span_id}
    assert (own.started_at, own.ended_at) == (job.created_at, job.finalized_at)
    assert (wait.started_at, wait.ended_at) == (job.created_at, run.started_at)
    assert (chat.started_at, chat.ended_at) == (run.started_at, run.answered_at)
    assert (record.started_at, record.ended_at) == (run.answered_at, run.ended_at)
    assert chat.name == "chat test-model"
    told = chat.attributes
    assert told["gen_ai.usage.input_tokens"] == 100
    assert told["gen_ai.usage.output_tokens"] == 5
    assert told["gen_ai.usage.cache_read.input_tokens"] == 64
    assert told["gen_ai.response.finish_reasons"] == ("stop",)
    assert (told["gen_ai.request.temperature"], told["gen_ai.request.seed"]) == (0.5, 7)
    assert own.attributes["longbatch.job.state"] == "completed"


def test_the_first_token_is_an_event_of_its_run(session: Session) -> None:
    lease = running(session)
    session.execute(update(Job).values(first_token_at=database_now(session)))
    completed(session, lease)
    (run,) = session.scalars(select(Attempt)).all()
    (chat,) = spans_of(session)["chat"]
    assert [(each.name, each.at) for each in chat.events] == [("first_token", run.first_token_at)]


def test_a_job_whose_worker_was_killed_and_whose_attempt_failed_stays_in_one_trace(session: Session) -> None:
    running(session)
    session.execute(update(Job).values(lease_expires_at=database_now(session) - timedelta(seconds=1)))
    lifecycle.rescue(session, now=database_now(session), max_rescues=2)
    ending.retry(session, again(session), ERROR, max_attempts=3, backoff=timedelta(0))
    completed(session, again(session))
    found = spans_of(session)
    assert [each.attributes["longbatch.attempt.outcome"] for each in found["chat"]] == [
        "lost",
        "retried",
        "completed",
    ]
    assert [each.error_type is None for each in found["chat"]] == [False, False, True]
    assert found["job"][0].error_type is None, "in the end it completed"
    assert len(found["wait"]) == 3
    assert len(found["record"]) == 1, "of the others nothing was whole"
    assert {each.context.trace_id for spans in found.values() for each in spans} == {CALLER.trace_id}
    assert len({each.context.span_id for spans in found.values() for each in spans}) == 8


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED])
def test_other_ends_have_their_traces_too(session: Session, state: JobState) -> None:
    job_in(session, state, traceparent=str(CALLER))
    found = spans_of(session)
    (own,) = found["job"]
    assert own.attributes["longbatch.job.state"] == state
    assert own.error_type == ("engine_error" if state is JobState.FAILED else None)
    assert len(found["chat"]) == 1


def test_a_job_that_ends_in_the_queue_only_waited(session: Session) -> None:
    job = submitted(session)
    lifecycle.cancel(session, job.id, tenant_id=job.tenant_id)
    found = spans_of(session)
    assert found.keys() == {"job", "wait"}
    assert found["wait"][0].ended_at == session.get_one(Job, job.id).finalized_at


def test_equal_jobs_have_a_trace_each_and_one_of_them_the_run(session: Session) -> None:
    register_engine(session)
    other = TraceContext("1" * 32, "2" * 16)
    for trace in (CALLER, other):
        submit_one(session, spec(100, prompt="the same", sharing=Sharing(), traceparent=str(trace)))
    completed(session, claim_one(session).lease)
    spans = ended.take(session).spans
    own = {each.context.trace_id: each for each in spans if each.name == "job"}
    assert own.keys() == {CALLER.trace_id, other.trace_id}
    assert "longbatch.job.is_shared" not in own[CALLER.trace_id].attributes
    assert own[other.trace_id].attributes["longbatch.job.is_shared"] is True
    assert {each.context.trace_id for each in spans if each.name.startswith("chat")} == {CALLER.trace_id}


def test_only_jobs_that_ended_and_have_a_trace_are_taken_and_once(session: Session) -> None:
    job_in(session, JobState.COMPLETED)
    submitted(session)
    assert not ended.take(session).row_ids
    completed(session, claim_one(session).lease)
    assert len(ended.take(session).row_ids[Job]) == 1
    assert not ended.take(session).row_ids


def test_a_row_that_cannot_be_told_harms_no_other(session: Session) -> None:
    completed(session, running(session))
    session.execute(update(Job).values(sampling=[]))  # no mapping
    completed(session, running(session))
    taken = ended.take(session)
    assert len(taken.row_ids[Job]) == 2
    assert [each.name for each in taken.spans].count("job") == 1


def test_what_is_given_back_is_taken_again_unless_it_is_old(session: Session) -> None:
    completed(session, running(session))
    taken = ended.take(session)
    ended.give_back(session, taken)
    assert ended.take(session).row_ids == taken.row_ids
    session.execute(update(Job).values(finalized_at=database_now(session) - ended.MAX_AGE))
    ended.give_back(session, taken)
    assert not ended.take(session).row_ids


def test_what_ended_long_ago_is_not_told(session: Session) -> None:
    completed(session, running(session))
    old = database_now(session) - ended.MAX_AGE
    session.execute(update(Job).values(finalized_at=old))
    completed(session, running(session))
    taken = ended.take(session)
    assert len(taken.row_ids[Job]) == 2
    assert [each.name for each in taken.spans].count("job") == 1


def seen_once(receiver: TraceReceiver) -> list[SeenSpan]:
    ids = [each.span_id for each in receiver.spans]
    assert len(ids) == len(set(ids)), "none is sent twice"
    return receiver.spans


def end_one(sessions: Sessions) -> None:
    with sessions.begin() as session:
        completed(session, running(session))


def test_the_collector_gets_spans_as_otlp_without_any_word_of_prompt_or_answer(
    sessions: Sessions, collector: TraceReceiver
) -> None:
    with sessions.begin() as session:
        lease = running(
            session,
            sampling={"stop": [SECRET]},
            custom_id=SECRET,
            metadata={"for": SECRET},
            webhook_url=f"https://example.com/{SECRET}?token={SECRET}",
        )
        completed(session, lease)
    writer = writer_to(collector, sessions, headers="x-api-key=one,x-other=two")
    assert not writer.run_once(), "there is no more"
    assert sorted(each.name for each in seen_once(collector)) == ["chat test-model", "job", "record", "wait"]
    assert (collector.headers["x-api-key"], collector.headers["x-other"]) == ("one", "two")
    assert not any(SECRET.encode() in body for body in collector.raw)
    assert {each.trace_id for each in collector.spans} == {CALLER.trace_id}


def test_a_collector_that_was_away_gets_what_ended_meanwhile(
    sessions: Sessions, collector: TraceReceiver
) -> None:
    clock = Clock()
    writer = writer_to(collector, sessions, clock=clock)
    end_one(sessions)
    collector.status = 400
    writer.run_once()
    num_requests = collector.num_requests
    writer.run_once()
    assert collector.num_requests == num_requests, "it is left alone for a while"
    collector.status, clock.now = 200, 100.0
    writer.run_once()
    assert len(seen_once(collector)) == 4


def test_two_workers_never_write_the_same_trace(sessions: Sessions) -> None:
    end_one(sessions)
    with sessions.begin() as one, sessions.begin() as other:
        assert len(ended.take(one).row_ids[Job]) == 1
        assert not ended.take(other).row_ids


@pytest.mark.parametrize("hangs", [False, True])
def test_a_worker_that_stops_sends_what_no_row_holds_and_waits_a_moment_at_most(
    sessions: Sessions, collector: TraceReceiver, *, hangs: bool
) -> None:
    writer = writer_to(collector, sessions, clock=time.monotonic)
    now = datetime.now(UTC)
    writer.add(Span(name="webhook", context=CALLER, parent_id=None, started_at=now, ended_at=now))
    if hangs:
        collector.going_on.clear()
        writer.finish(within=0.1)
        assert not collector.spans
    else:
        writer.finish(within=60)
        assert [each.name for each in collector.spans] == ["webhook"]


def test_a_collector_that_is_not_there_costs_no_row_its_trace(sessions: Sessions) -> None:
    sender = Collector(TraceSettings(endpoint=f"http://127.0.0.1:{free_port()}", timeout_seconds=0.2))
    writer = TraceWriter(sessions, sender, is_stopping=lambda: False)
    end_one(sessions)
    assert not writer.run_once()
    assert not writer.run_once(), "it is left alone for a while"
    with sessions() as session:
        assert session.scalars(select(Job.traced_at)).all() == [None], "it stays to be written"


def test_a_collector_that_hangs_is_waited_for_within_limits_and_asked_once_at_a_time(
    sessions: Sessions, collector: TraceReceiver
) -> None:
    clock = Clock()
    collector.going_on.clear()
    writer = writer_to(collector, sessions, clock=clock, timeout_seconds=0.2)
    end_one(sessions)
    for now in (0.0, 100.0, 200.0):
        clock.now = now
        assert not writer.run_once()
    with sessions() as session:
        assert session.scalars(select(Job.traced_at)).all() == [None], "it stays to be written"


def test_a_span_that_cannot_be_written_harms_no_other(collector: TraceReceiver) -> None:
    now = datetime.now(UTC)
    good = Span(name="good", context=CALLER, parent_id=None, started_at=now, ended_at=now)
    bad = replace(good, name="bad", parent_id="no hex")
    sender = Collector(TraceSettings(endpoint=collector.url))
    assert sender.send([bad, good], is_stopping=lambda: False)
    assert [each.name for each in collector.spans] == ["good"]
