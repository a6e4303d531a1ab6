"""Equal requests run once, and every caller gets one result and one event."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from uuid import UUID

import httpx2
import pytest
from sqlalchemy import Engine, event, func, select, text, update
from sqlalchemy.orm import Session, sessionmaker

import ending
from batch_support import Service
from jobs import checkpoints, deletion, lifecycle, submission
from jobs.database import database_now
from jobs.ids import uuid7
from jobs.models import DEFAULT_TENANT, Job, JsonObject, Result, Tenant, WebhookEvent
from jobs.models.tenant import UsageEntry
from jobs.scheduling import tick
from jobs.sharing import Sharing
from jobs.starting import Claim
from jobs.states import JobState
from jobs.submission import Submitter
from jobs.submission.job_specs import JobSpec
from openai_support import chat_line
from support import (
    CAPACITY,
    ENGINE,
    ERROR,
    MODEL,
    claim_one,
    eventually,
    num_waiting_for_locks,
    output_of,
    refusing,
    register_engine,
    spec,
    submit_one,
)
from worker.maintenance import JobMaintenance


def equal(prompt: str = "the same", **fields: object) -> JobSpec:
    return spec(prompt=prompt, **{"sharing": Sharing(), **fields})  # type: ignore[arg-type]  # by name


def submit(sessions: sessionmaker[Session], *specs: JobSpec, tenant_id: UUID = DEFAULT_TENANT) -> list[UUID]:
    with sessions.begin() as session:
        jobs = submission.submit(session, specs, Submitter(tenant_id, CAPACITY))
        return [job.id for job in jobs]


def run(sessions: sessionmaker[Session], *, model: str = MODEL) -> Claim:
    with sessions.begin() as session:
        register_engine(session, model=model)
        return claim_one(session)


def complete(sessions: sessionmaker[Session], claim: Claim) -> None:
    """Store an answer as a worker does: in a tick."""
    ended = ending.completed(claim.lease, output_of("answer"))
    with sessions.begin() as session:
        assert tick.tick(session, ENGINE, None, ended=[ended]).stored.keys() == {claim.lease.lease_id}


def states(sessions: sessionmaker[Session], job_ids: Sequence[UUID]) -> list[str]:
    with sessions() as session:
        found = dict(session.execute(select(Job.id, Job.state).where(Job.id.in_(job_ids))).all())
    return [found[job_id] for job_id in job_ids]


def results(sessions: sessionmaker[Session]) -> dict[UUID, str]:
    with sessions() as session:
        return dict(session.execute(select(Result.job_id, Result.output)).all())


def ends_told(sessions: sessionmaker[Session]) -> Counter[tuple[UUID | None, str]]:
    with sessions() as session:
        return Counter((each.job_id, each.type) for each in session.scalars(select(WebhookEvent)))


def settle(sessions: sessionmaker[Session]) -> int:
    return JobMaintenance(sessions).settle_twins()


def test_equal_requests_run_once_and_each_gets_its_own_result_and_event(
    sessions: sessionmaker[Session],
) -> None:
    url = "https://example.com/hook"
    job_ids = submit(sessions, equal(custom_id="a"), equal(custom_id="b", webhook_url=url))
    job_ids += submit(sessions, equal(custom_id="c"))
    assert states(sessions, job_ids) == ["queued", "blocked", "blocked"]
    claim = run(sessions)
    job_ids += submit(sessions, equal(custom_id="d"))
    complete(sessions, claim)
    assert states(sessions, job_ids) == ["completed"] * 4
    assert results(sessions) == dict.fromkeys(job_ids, "answer")
    assert ends_told(sessions) == Counter({(job_id, "job.completed"): 1 for job_id in job_ids})
    assert settle(sessions) == 0
    with sessions() as session:
        jobs = session.scalars(select(Job).order_by(Job.id)).all()
        assert [job.custom_id for job in jobs] == ["a", "b", "c", "d"]
        assert {(job.prompt_tokens, job.completion_tokens, job.finish_reason) for job in jobs} == {
            (100, 3, "stop")
        }
        assert [job.cached_tokens for job in jobs] == [None, 100, 100, 100], "no engine read theirs"
        for job in jobs:
            assert job.started_at is not None
            assert job.finalized_at is not None
            assert job.created_at <= job.started_at <= job.finalized_at
        sums = [getattr(UsageEntry, name) for name in ("num_jobs", "prompt_tokens", "cached_tokens")]
        assert session.execute(select(*map(func.sum, sums))).one() == (4, 400, 300)


def test_a_request_after_the_end_runs_again(sessions: sessionmaker[Session]) -> None:
    submit(sessions, equal())
    complete(sessions, run(sessions))
    assert states(sessions, submit(sessions, equal())) == ["queued"]


def test_a_request_that_asks_for_it_takes_a_finished_result_that_is_young_enough(
    sessions: sessionmaker[Session],
) -> None:
    (first,) = submit(sessions, equal())
    claim = run(sessions)
    hour = Sharing(timedelta(hours=1))
    (waiting,) = submit(sessions, equal(sharing=hour))
    complete(sessions, claim)
    cached = [first, waiting, *submit(sessions, equal(sharing=hour), equal(sharing=hour))]
    assert set(states(sessions, cached)) == {"completed"}
    assert results(sessions) == dict.fromkeys(cached, "answer")
    assert ends_told(sessions) == Counter({(job_id, "job.completed"): 1 for job_id in cached})
    with sessions.begin() as session:
        session.execute(update(Job).values(finalized_at=Job.finalized_at - timedelta(hours=2)))
    runs = submit(sessions, equal(sharing=hour), equal(sharing=hour), equal(sharing=Sharing(timedelta(3))))
    assert states(sessions, runs) == ["queued", "blocked", "completed"]
    assert states(sessions, submit(sessions, equal("another", sharing=hour))) == ["queued"]


def test_the_age_of_an_answer_counts_from_its_run_however_often_it_was_taken(
    sessions: sessionmaker[Session],
) -> None:
    submit(sessions, equal())
    complete(sessions, run(sessions))
    hour = Sharing(timedelta(hours=1))

    def later(**span: float) -> None:
        with sessions.begin() as session:
            session.execute(update(Job).values(finalized_at=Job.finalized_at - timedelta(**span)))

    later(minutes=50)
    assert states(sessions, submit(sessions, equal(sharing=hour))) == ["completed"]
    later(minutes=50)
    assert states(sessions, submit(sessions, equal(sharing=hour))) == ["queued"]


def test_a_result_that_was_deleted_is_in_no_cache(sessions: sessionmaker[Session]) -> None:
    (first,) = submit(sessions, equal())
    complete(sessions, run(sessions))
    with sessions.begin() as session:
        assert deletion.remove(session, first, tenant_id=DEFAULT_TENANT)
    assert states(sessions, submit(sessions, equal(sharing=Sharing(timedelta(1))))) == ["queued"]


def test_only_requests_with_the_same_answer_share_a_run(sessions: sessionmaker[Session]) -> None:
    with sessions.begin() as session:
        session.add(Tenant(id=(other := uuid7()), name=f"tenant {other}"))
    chance = {"temperature": 0.5}
    alone = [
        equal(),
        equal("another prompt"),
        equal(max_tokens=65),
        equal(sampling={"stop": ["x"]}),
        equal(sampling=chance),
        equal(sampling=chance),
        equal(sharing=None),
        equal(sampling={**chance, "seed": 1}),
        equal(sampling={**chance, "seed": 2}),
    ]
    assert set(states(sessions, submit(sessions, *alone))) == {"queued"}
    assert states(sessions, submit(sessions, equal(), tenant_id=other)) == ["queued"]
    assert states(sessions, submit(sessions, equal(sampling={**chance, "seed": 1}))) == ["blocked"]


@pytest.mark.parametrize("verb", ["cancel", "expire"])
def test_the_oldest_twin_goes_on_where_a_cancelled_or_expired_leader_stopped(
    sessions: sessionmaker[Session], verb: str
) -> None:
    window = timedelta(minutes=1) if verb == "expire" else None
    leader, *twins = submit(sessions, equal(window=window), equal(rank=1), equal(custom_id="last"))
    claim = run(sessions)
    part = checkpoints.Output("half", (5, 6, 7), 2, fingerprint="tokenizer")
    with sessions.begin() as session:
        if verb == "cancel":
            lifecycle.cancel(session, leader, tenant_id=DEFAULT_TENANT)
        else:
            lifecycle.expire(session, now=database_now(session) + timedelta(hours=1))
        assert ending.release(session, claim.lease, part) is not JobState.QUEUED
    ended = "cancelled" if verb == "cancel" else "expired"
    assert states(sessions, [leader, *twins]) == [ended, "queued", "blocked"]
    with sessions() as session:
        assert checkpoints.load(session, twins[0]) == part
        assert session.get_one(Job, twins[0]).completion_tokens == 2
    complete(sessions, run(sessions))
    assert results(sessions) == {leader: "half", twins[0]: "answer", twins[1]: "answer"}
    assert set(ends_told(sessions).values()) == {1}


def test_a_twin_is_cancelled_alone(sessions: sessionmaker[Session]) -> None:
    job_ids = submit(sessions, equal(), equal(), equal())
    with sessions.begin() as session:
        lifecycle.cancel(session, job_ids[1], tenant_id=DEFAULT_TENANT)
    complete(sessions, run(sessions))
    assert states(sessions, job_ids) == ["completed", "cancelled", "completed"]
    assert set(ends_told(sessions).values()) == {1}


def test_a_failure_that_another_run_would_repeat_ends_all_and_any_other_does_not(
    sessions: sessionmaker[Session],
) -> None:
    hopeless: JsonObject = {"code": "unsupported_parameter", "message": "No."}
    job_ids = submit(sessions, equal(), equal())
    claim = run(sessions)
    with sessions.begin() as session:
        ending.fail(session, claim.lease, hopeless)
    assert states(sessions, job_ids) == ["failed", "failed"]
    job_ids = submit(sessions, equal(), equal())
    claim = run(sessions)
    with sessions.begin() as session:
        session.execute(update(Job).where(Job.id == claim.job.id).values(num_rescues=2))
        ending.fail(session, claim.lease, ERROR)
    assert states(sessions, job_ids) == ["failed", "queued"]
    with sessions() as session:
        assert session.get_one(Job, job_ids[1]).num_rescues == 2
    assert set(ends_told(sessions).values()) == {1}


def test_a_leader_is_as_urgent_as_its_most_urgent_twin(sessions: sessionmaker[Session]) -> None:
    leader, other = submit(sessions, equal(rank=-1), equal("other"))
    submit(sessions, equal(rank=0), equal("other", window=timedelta(hours=1)))
    with sessions() as session:
        assert (session.get_one(Job, leader).rank, session.get_one(Job, other).rank) == (0, 1)


def test_thousands_of_twins_end_in_bounded_transactions(sessions: sessionmaker[Session]) -> None:
    job_ids = submit(sessions, *[equal() for _ in range(1100)])
    complete(sessions, run(sessions))
    assert Counter(states(sessions, job_ids)) == {"completed": 33, "blocked": 1067}
    # An equal request that comes meanwhile keeps none of them waiting.
    assert states(sessions, submit(sessions, equal())) == ["queued"]
    assert [settle(sessions) for _ in range(4)] == [500, 500, 67, 0]
    assert set(states(sessions, job_ids)) == {"completed"}
    assert set(ends_told(sessions).values()) == {1}


def test_a_failure_that_another_run_would_repeat_ends_any_number_without_one(
    sessions: sessionmaker[Session],
) -> None:
    job_ids = submit(sessions, *[equal() for _ in range(40)])
    claim = run(sessions)
    with sessions.begin() as session:
        ending.fail(session, claim.lease, {"code": "unsupported_parameter", "message": "No."})
    assert Counter(states(sessions, job_ids)) == {"failed": 33, "blocked": 7}
    later = submit(sessions, equal(), equal())
    assert [settle(sessions), settle(sessions)] == [7, 0]
    assert Counter(states(sessions, job_ids)) == {"failed": 40}
    assert states(sessions, later) == ["queued", "blocked"], "it is asked anew"
    with sessions.begin() as session:
        lifecycle.cancel(session, later[0], tenant_id=DEFAULT_TENANT)
    assert states(sessions, later) == ["cancelled", "queued"], "no earlier failure is theirs"
    assert set(ends_told(sessions).values()) == {1}


def test_leaders_that_end_together_end_no_more_twins_than_one(sessions: sessionmaker[Session]) -> None:
    for prompt in ("one", "other"):
        submit(sessions, *[equal(prompt) for _ in range(31)])
    claims = [run(sessions) for _ in range(2)]
    ended = [ending.completed(each.lease, output_of("answer")) for each in claims]
    with sessions.begin() as session:
        tick.tick(session, ENGINE, None, ended=ended)
        completed = session.scalar(select(func.count()).where(Job.state == "completed"))
        assert completed == 2 + 32
    while settle(sessions):
        pass
    assert len(results(sessions)) == 62


def test_results_for_many_requests_are_found_by_one_statement(
    sessions: sessionmaker[Session], engine: Engine
) -> None:
    def num_statements(*prompts: str) -> int:
        asked = [equal(prompt, sharing=Sharing(timedelta(hours=1))) for prompt in prompts]
        with counted(engine) as statements:
            submit(sessions, *asked)
        return len(statements)

    assert num_statements("a", "b") == num_statements("c", "d", "e", "f", "g", "h")


@pytest.fixture
def poisoned(sessions: sessionmaker[Session]) -> Iterator[None]:
    """Jobs with this custom id can no more be changed."""
    with refusing(sessions, "BEFORE UPDATE ON jobs FOR EACH ROW WHEN (OLD.custom_id = 'poison')"):
        yield


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("ending", ["complete", "cancel"])
def test_a_twin_that_cannot_be_changed_holds_up_no_other(
    sessions: sessionmaker[Session], ending: str
) -> None:
    job_ids = submit(sessions, equal(), equal(custom_id="poison"), equal())
    if ending == "complete":
        complete(sessions, run(sessions))
        settle(sessions)
        assert states(sessions, job_ids) == ["completed", "blocked", "completed"]
        return
    with sessions.begin() as session:
        lifecycle.cancel(session, job_ids[0], tenant_id=DEFAULT_TENANT)
    rounds = JobMaintenance(sessions)
    rounds.settle_twins()
    rounds.settle_twins()
    assert states(sessions, job_ids) == ["cancelled", "blocked", "queued"]


def test_of_requests_that_come_at_once_one_runs(
    sessions: sessionmaker[Session], background: Callable[..., Future[list[UUID]]]
) -> None:
    with sessions.begin() as session:
        first = submit_one(session, equal()).id
        second = background(submit, sessions, equal())
        eventually(lambda: num_waiting_for_locks(sessions) == 1)
    assert states(sessions, [first, *second.result()]) == ["queued", "blocked"]


def test_a_leader_whose_twin_is_just_coming_ends_after_it(
    sessions: sessionmaker[Session], background: Callable[..., Future[object]]
) -> None:
    (leader,) = submit(sessions, equal())
    with sessions.begin() as session:
        twin = submit_one(session, equal()).id

        def cancel() -> None:
            with sessions.begin() as other:
                lifecycle.cancel(other, leader, tenant_id=DEFAULT_TENANT)

        cancelled = background(cancel)
        eventually(lambda: num_waiting_for_locks(sessions) == 1)
    cancelled.result()
    assert states(sessions, [leader, twin]) == ["cancelled", "queued"]


def test_twins_of_a_leader_that_an_older_release_ended_are_settled(sessions: sessionmaker[Session]) -> None:
    """Such a process knows nothing of twins; killed between two rounds, a newer one leaves them as well."""
    job_ids = submit(sessions, equal(), equal(), equal())
    with sessions.begin() as session:
        session.execute(update(Job).values(has_twins=False))
    complete(sessions, run(sessions))
    assert states(sessions, job_ids) == ["completed", "blocked", "blocked"]
    assert settle(sessions) == 2
    assert results(sessions) == dict.fromkeys(job_ids, "answer")
    job_ids = submit(sessions, equal(), equal(), equal())
    with sessions.begin() as session:
        session.execute(update(Job).values(has_twins=False))
        lifecycle.cancel(session, job_ids[0], tenant_id=DEFAULT_TENANT)
    assert [settle(sessions), settle(sessions)] == [1, 0]
    assert states(sessions, job_ids) == ["cancelled", "queued", "blocked"]


@contextmanager
def counted(engine: Engine) -> Iterator[list[str]]:
    """The statements that are sent."""
    statements: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        statements.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield statements
    finally:
        event.remove(engine, "before_cursor_execute", note)


@contextmanager
def dying_after(engine: Engine, num_statements: int) -> Iterator[None]:
    """The statement after so many others is never sent; what is not committed is lost, as after kill -9."""
    left = num_statements

    def count(*_: object) -> None:
        nonlocal left
        if left == 0:
            raise KeyboardInterrupt
        left -= 1

    event.listen(engine, "before_cursor_execute", count)
    try:
        yield
    finally:
        event.remove(engine, "before_cursor_execute", count)


_OPEN_TRANSACTIONS = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend'
      AND xact_start IS NOT NULL AND pid <> pg_backend_pid()
"""


def has_open_transactions(engine: Engine) -> bool:
    with engine.connect() as connection:
        return bool(connection.scalar(text(_OPEN_TRANSACTIONS)))


def until_it_lives(engine: Engine, step: Callable[[], object]) -> int:
    """Run the step, killed at its first statement, at its second, and so on, until it comes to its end."""
    for num_statements in range(100):
        try:
            with dying_after(engine, num_statements):
                step()
        except KeyboardInterrupt:
            # The server notices a while later: what it still has locked, the next step would skip.
            eventually(lambda: not has_open_transactions(engine))
            continue
        return num_statements
    raise AssertionError


def test_killed_at_any_statement_each_caller_gets_one_result_and_one_event(
    sessions: sessionmaker[Session], engine: Engine
) -> None:
    job_ids = submit(sessions, *[equal(webhook_url="https://example.com/x") for _ in range(40)])
    claim = run(sessions)
    assert until_it_lives(engine, lambda: complete(sessions, claim)) > 5
    assert Counter(states(sessions, job_ids)) == {"completed": 33, "blocked": 7}
    assert until_it_lives(engine, lambda: settle(sessions)) > 5
    assert results(sessions) == dict.fromkeys(job_ids, "answer")
    assert ends_told(sessions) == Counter({(job_id, "job.completed"): 1 for job_id in job_ids})


@pytest.mark.parametrize("verb", ["cancel", "expire"])
def test_killed_at_any_statement_a_stopped_leader_ends_once_and_so_do_its_twins(
    sessions: sessionmaker[Session], engine: Engine, verb: str
) -> None:
    url, window = "https://example.com/x", timedelta(minutes=1) if verb == "expire" else None
    leader, *twins = submit(
        sessions, equal(webhook_url=url, window=window), *[equal(webhook_url=url) for _ in range(3)]
    )
    claim = run(sessions)

    def stop() -> None:
        with sessions.begin() as session:
            if verb == "cancel":
                lifecycle.cancel(session, leader, tenant_id=DEFAULT_TENANT)
            else:
                lifecycle.expire(session, now=database_now(session) + timedelta(hours=1))

    def release() -> None:
        with sessions.begin() as session:
            ending.release(session, claim.lease, output_of("half"))

    for step in (stop, release, lambda: settle(sessions)):
        assert until_it_lives(engine, step) > 0
    heir = run(sessions)
    assert until_it_lives(engine, lambda: complete(sessions, heir)) > 5
    assert results(sessions) == {leader: "half"} | dict.fromkeys(twins, "answer")
    told = Counter({(job_id, "job.completed"): 1 for job_id in twins})
    assert ends_told(sessions) == told + Counter({(leader, f"job.{states(sessions, [leader])[0]}"): 1})


def test_equal_lines_of_a_batch_run_once(sessions: sessionmaker[Session]) -> None:
    service = Service(sessions)
    asked = {"model": MODEL, "temperature": 0, "share_equal": True}
    batch_id = service.accepted([chat_line(f"line-{number}", "the same", **asked) for number in range(40)])
    assert Counter(job.state for job in service.jobs(batch_id)) == {"queued": 1, "blocked": 39}
    service.complete()
    while settle(sessions):
        pass
    service.settle()
    assert service.batch(batch_id).state == "completed"
    assert service.outcome(batch_id) == (sorted(f"line-{number}" for number in range(40)), [])


def test_a_caller_asks_for_one_run_and_cancels_its_leader(http: httpx2.Client) -> None:
    sent = {"input": "Why is the sky blue?", "share_equal": True}
    first, second = (http.post("/v1/jobs", json=sent).json() for _ in range(2))
    assert (first["state"], second["state"]) == ("queued", "blocked")
    waiting = http.get(f"/v1/jobs/{second['id']}").json()
    assert waiting["queue"]["reason"] == "dependency"
    third = http.post("/v1/jobs", json={**sent, "cache": {"max_age_seconds": 60}}).json()
    assert third["state"] == "blocked"
    alone = http.post("/v1/jobs", json={**sent, "share_equal": False}).json()
    assert alone["state"] == "queued"
    assert http.post(f"/v1/jobs/{first['id']}/cancel").json()["state"] == "cancelled"
    assert http.get(f"/v1/jobs/{second['id']}").json()["state"] == "queued"


def test_a_caller_gets_a_cached_result_at_once(http: httpx2.Client, sessions: sessionmaker[Session]) -> None:
    sent = {"input": "Why is the sky blue?", "max_tokens": 16, "cache": {"max_age_seconds": 60}}
    http.post("/v1/jobs", json=sent)
    complete(sessions, run(sessions, model="llama-3.1-8b-instruct"))
    answered = http.post("/v1/jobs", json=sent)
    assert (answered.status_code, answered.json()["state"]) == (202, "completed")
    found = http.get(f"/v1/jobs/{answered.json()['id']}/result").json()
    assert found["output"] == "answer"
    assert found["usage"]["prompt_tokens_details"] == {"cached_tokens": found["usage"]["prompt_tokens"]}
    assert http.post("/v1/jobs", json={**sent, "cache": {"max_age_seconds": 0}}).status_code == 400
