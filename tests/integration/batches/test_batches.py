from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event, func, select, update
from sqlalchemy.orm import Session, sessionmaker

import ending
from batch_support import Service, lines, tools, validate_next
from jobs import deletion, files, ids, lifecycle, turns
from jobs.batches.views import batch_object
from jobs.database import database_now
from jobs.engines.capacity import Budget
from jobs.errors import ConflictError, EngineError, EngineUnableError, UnavailableError
from jobs.files.storage import DirectoryStore, RowStore, StoredPart
from jobs.forecast.duration import Estimate, seconds_until_done
from jobs.forecast.engine_speed import Speed
from jobs.forecast.simulation import EngineState
from jobs.models import DEFAULT_TENANT, Job, WebhookEvent
from jobs.models.batch import Batch
from jobs.models.file import File, FilePart
from jobs.models.turn import VALIDATION
from jobs.states import JobState
from jobs.states.file import FileState
from openai_support import chat_line, jsonl
from support import MODEL, claim_one, refusing, register_engine


class DiedError(BaseException):
    """The worker was killed here."""


@contextmanager
def dying_after(engine: Engine, num_statements: int) -> Iterator[None]:
    """The statement after so many others is never sent; what is not committed is lost, as after kill -9."""
    left = num_statements

    def count(*_: Any) -> None:  # noqa: ANN401
        nonlocal left
        if left == 0:
            raise DiedError
        left -= 1

    event.listen(engine, "before_cursor_execute", count)
    try:
        yield
    finally:
        event.remove(engine, "before_cursor_execute", count)


@pytest.fixture
def service(sessions: sessionmaker[Session]) -> Service:
    return Service(sessions)


def test_a_batch_goes_through_its_states_and_every_line_is_in_one_file(service: Service) -> None:
    content = [*lines(5), chat_line("bad", model=MODEL, temperature=7)]
    batch_id = service.accepted(content)
    batch = service.batch(batch_id)
    assert (batch.state, batch.num_lines, batch.num_failed) == ("in_progress", 6, 1)
    jobs = service.jobs(batch_id)
    assert [job.batch_line for job in jobs] == [1, 2, 3, 4, 5]
    assert {job.expires_at for job in jobs} == {batch.expires_at}
    assert {job.max_tokens for job in jobs} == {8}


def test_counts_and_files_grow_while_the_batch_runs(service: Service) -> None:
    batch_id = service.accepted(lines(6))
    service.complete(1)
    service.complete(1, cached=2)
    service.settle()
    batch = service.batch(batch_id)
    assert (batch.state, batch.num_completed, batch.output_tokens) == ("in_progress", 2, 6)
    assert batch_object(batch)["usage"]["input_tokens_details"] == {"cached_tokens": 2}
    usages = [each["response"]["body"]["usage"] for each in service.read(batch.output_file_id)]  # type: ignore[index]  # JSON
    assert [each.get("prompt_tokens_details") for each in usages] == [None, {"cached_tokens": 2}]
    assert service.advance() == 0
    service.complete()
    service.settle()
    batch = service.batch(batch_id)
    assert (batch.state, batch.num_completed) == ("completed", 6)
    assert service.outcome(batch_id) == ([f"line-{number}" for number in range(6)], [])


def test_each_batch_that_ends_has_one_event_in_the_transaction_that_ended_it(
    service: Service, sessions: sessionmaker[Session]
) -> None:
    done, stopped = service.accepted(lines(1)), service.accepted(lines(1))
    refused = service.create(b"nonsense")
    service.cancel(stopped)
    assert validate_next(sessions, service.tools)
    service.complete()
    service.settle()
    with sessions() as session:
        found = session.scalars(select(WebhookEvent).where(WebhookEvent.batch_id.is_not(None))).all()
    assert {(row.batch_id, row.type) for row in found} == {
        (done, "batch.completed"),
        (refused, "batch.failed"),
        (stopped, "batch.cancelled"),
    }
    assert all(
        (row.payload or {})["data"] == {"id": ids.batch_id(row.batch_id)} for row in found if row.batch_id
    )


@pytest.mark.parametrize("directory", [False, True], ids=["rows", "directory"])
def test_a_worker_that_dies_after_any_statement_loses_and_doubles_nothing(
    service: Service, sessions: sessionmaker[Session], engine: Engine, tmp_path: Path, *, directory: bool
) -> None:
    if directory:
        service.tools = tools(DirectoryStore(tmp_path))
    content = [*lines(3), chat_line("bad", model=MODEL, n=17), *lines(5)[3:]]
    batch_id = service.create(content)
    num_deaths = 0
    while not service.batch(batch_id).is_terminal:
        for num_statements in range(100):
            try:
                with dying_after(engine, num_statements):
                    validate_next(sessions, service.tools)
                    service.advance()
            except DiedError:
                num_deaths += 1
                service.lose_leases()
            else:
                break
        service.complete(2)
    assert num_deaths > 30
    batch = service.batch(batch_id)
    assert (batch.state, batch.num_completed, batch.num_failed) == ("completed", 5, 1)
    assert service.outcome(batch_id) == ([f"line-{number}" for number in range(5)], ["bad"])
    assert len(service.jobs(batch_id)) == 5


def test_a_batch_of_many_parts_has_each_line_once(service: Service) -> None:
    num = 2203
    batch_id = service.create(lines(num))
    assert validate_next(service.sessions, service.tools)
    assert service.advance() == 1
    assert len(service.jobs(batch_id)) == 1000
    service.settle()
    assert [job.batch_line for job in service.jobs(batch_id)] == list(range(1, num + 1))
    together = {job.created_at for job in service.jobs(batch_id)}
    assert together == {service.batch(batch_id).in_progress_at}, "its lines were submitted together"


def test_two_workers_do_not_validate_one_batch_twice(
    service: Service, sessions: sessionmaker[Session]
) -> None:
    service.create(lines(1))
    second = service.create(lines(1))
    with sessions.begin() as session:
        assert turns.claim(session, VALIDATION, lease=timedelta(seconds=30)) is not None
    assert validate_next(sessions, service.tools)
    assert service.batch(second).state == "in_progress"
    assert not validate_next(sessions, service.tools), "the first one's worker is at it"


def test_workers_that_move_one_batch_together_write_each_line_once(service: Service) -> None:
    batch_ids = [service.create(lines(1100)), service.create(lines(300))]
    for _ in batch_ids:
        assert validate_next(service.sessions, service.tools)
    service.advance()
    service.cancel(batch_ids[0])
    service.cancel(batch_ids[1])

    def work() -> None:
        while not all(service.batch(batch_id).is_terminal for batch_id in batch_ids):
            service.advance()

    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(work) for _ in range(3)]:
            done.result(timeout=60)
    for batch_id, num_lines in zip(batch_ids, (1100, 300), strict=True):
        assert service.outcome(batch_id) == ([], sorted(f"line-{number}" for number in range(num_lines)))


def test_a_batch_cancelled_while_it_is_validated_ends_without_files(service: Service) -> None:
    batch_id = service.create(lines(2))
    assert service.cancel(batch_id).state == "cancelling"
    service.settle()
    batch = service.batch(batch_id)
    assert (batch.state, batch.num_lines) == ("cancelled", 0)
    assert (batch.output_file_id, batch.error_file_id) == (None, None)
    assert not validate_next(service.sessions, service.tools)


def test_cancelling_keeps_results_and_ends_lines_that_are_no_jobs_yet(service: Service) -> None:
    batch_id = service.create(lines(1200))
    assert validate_next(service.sessions, service.tools)
    service.advance()
    service.complete(3)
    service.cancel(batch_id)
    service.settle()
    batch = service.batch(batch_id)
    assert (batch.state, batch.num_completed, batch.num_failed, batch.num_stopped) == (
        "cancelled",
        3,
        0,
        1197,
    )
    assert len(service.jobs(batch_id)) == 1000
    output, errors = service.outcome(batch_id)
    assert sorted(output + errors) == sorted(f"line-{number}" for number in range(1200))
    assert {line["error"]["code"] for line in service.read(batch.error_file_id)} == {"batch_cancelled"}  # type: ignore[index]


def test_lines_that_are_no_jobs_when_the_window_ends_expire_too(service: Service) -> None:
    batch_id = service.create(lines(600))
    assert validate_next(service.sessions, service.tools)
    service.advance()
    service.complete(1)
    service.end_window(batch_id)
    service.settle()
    batch = service.batch(batch_id)
    assert (batch.state, batch.num_completed, batch.num_stopped) == ("expired", 1, 599)
    assert {line["error"]["code"] for line in service.read(batch.error_file_id)} == {"batch_expired"}  # type: ignore[index]
    with pytest.raises(ConflictError):
        service.cancel(batch_id)


def test_a_line_whose_job_is_cancelled_alone_has_failed_and_the_batch_completes(service: Service) -> None:
    batch_id = service.accepted(lines(2))
    with service.sessions.begin() as session:
        lifecycle.cancel(session, service.jobs(batch_id)[0].id, tenant_id=DEFAULT_TENANT)
    service.complete()
    service.settle()
    batch = service.batch(batch_id)
    assert (batch.state, batch.num_completed, batch.num_failed) == ("completed", 1, 1)
    assert service.outcome(batch_id) == (["line-1"], ["line-0"])


@pytest.mark.parametrize(("error", "status"), [(EngineUnableError("no"), 400), (EngineError("no"), 500)])
def test_a_line_with_a_parameter_that_the_engine_does_not_take_is_a_bad_request_and_no_other_failure(
    service: Service, error: EngineError, status: int
) -> None:
    batch_id = service.accepted(lines(1))
    with service.sessions.begin() as session:
        register_engine(session)
    with service.sessions.begin() as session:
        ending.fail(session, claim_one(session).lease, {"code": error.code, "message": error.message})
    service.settle()
    (line,) = service.read(service.batch(batch_id).error_file_id)
    response: Any = line["response"]
    said = response["body"]["error"]
    assert (response["status_code"], said["code"], said["message"]) == (status, error.code, error.message)


def test_only_failed_lines_are_retried_with_their_own_words(service: Service) -> None:
    content = lines(4)
    content[2]["note"] = "kept"
    batch_id = service.accepted(content)
    with pytest.raises(ConflictError):
        service.retry(batch_id)
    with service.sessions.begin() as session:
        lifecycle.cancel(session, service.jobs(batch_id)[2].id, tenant_id=DEFAULT_TENANT)
    service.complete()
    service.settle()
    again = service.retry(batch_id)
    assert validate_next(service.sessions, service.tools)
    batch = service.batch(again)
    assert (batch.state, batch.num_lines, batch.retry_of) == ("in_progress", 1, batch_id)
    assert service.read(batch.input_file_id) == [content[2]]
    service.settle()
    service.complete()
    service.settle()
    assert service.outcome(again) == (["line-2"], [])
    with pytest.raises(ConflictError, match="No line"):
        service.retry(again)


def test_too_many_lines_refuse_the_batch(service: Service) -> None:
    service.tools = replace(service.tools, max_lines=3)
    batch_id = service.create(lines(4))
    assert validate_next(service.sessions, service.tools)
    batch = service.batch(batch_id)
    assert batch.state == "failed"
    assert [error["code"] for error in batch.errors or []] == ["too_many_tasks"]


def test_a_line_over_the_limit_refuses_the_batch_and_the_next_line_is_read(service: Service) -> None:
    service.tools = replace(service.tools, max_line_bytes=1000)
    batch_id = service.create(jsonl([chat_line("long", "x" * 2000, model=MODEL)]) + b"[]\n")
    assert validate_next(service.sessions, service.tools)
    errors = [(error["line"], error["code"]) for error in service.batch(batch_id).errors or []]
    assert errors == [(1, "request_too_large"), (2, "invalid_json_line")]


def test_a_batch_whose_bytes_are_lost_holds_up_no_other(service: Service, tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    service.tools = tools(store)
    refused, stuck = service.create(lines(1)), service.create(lines(600))
    with service.sessions() as session:
        keys = {id_: str(key) for id_, key in session.execute(select(FilePart.file_id, FilePart.key))}
    store.drop([keys[service.batch(refused).input_file_id]])
    for _ in range(2):
        assert validate_next(service.sessions, service.tools)
    store.drop([keys[service.batch(stuck).input_file_id]])
    good = service.accepted(lines(2))
    service.complete()
    service.settle()
    assert [error["code"] for error in service.batch(refused).errors or []] == ["file_bytes_lost"]
    assert service.batch(stuck).state == "in_progress"
    assert service.outcome(good) == (["line-0", "line-1"], [])
    service.cancel(stuck)
    service.settle()
    batch = service.batch(stuck)
    assert (batch.state, batch.num_stopped) == ("cancelled", 600)


class PartlyAway(RowStore):
    """A store that loses touch with every part but the first."""

    is_away = False

    def get(self, part: StoredPart) -> bytes:
        raw = super().get(part)
        if self.is_away and b"line-0" not in raw:
            raise UnavailableError
        return raw


def test_lines_become_jobs_though_those_after_them_cannot_be_read_now(service: Service) -> None:
    service.tools = tools(store := PartlyAway())
    filler = b"\n" * 999 + (b" " * 200_000 + b"\n") * 60
    batch_id = service.create(jsonl(lines(1)) + filler + jsonl([chat_line("last", "Last.", model=MODEL)]))
    assert validate_next(service.sessions, service.tools)
    store.is_away = True
    service.settle()
    assert (len(service.jobs(batch_id)), service.batch(batch_id).is_expanded) == (1, False)
    store.is_away = False
    with service.sessions.begin() as session:
        session.execute(update(Batch).values(run_after=None, num_failures=0))
    service.settle()
    assert (len(service.jobs(batch_id)), service.batch(batch_id).is_expanded) == (2, True)


def test_an_input_file_that_is_deleted_goes_only_when_its_batch_has_read_it(
    service: Service, sessions: sessionmaker[Session]
) -> None:
    batch_id = service.create(lines(2))
    file_id = service.batch(batch_id).input_file_id
    with sessions.begin() as session:
        files.remove(session, file_id, tenant_id=DEFAULT_TENANT)
        late = database_now(session).replace(year=2100)
    with sessions.begin() as session:
        assert files.prune(session, service.tools.store, now=late) == 0
    assert validate_next(sessions, service.tools)
    service.settle()
    assert len(service.jobs(batch_id)) == 2
    with sessions.begin() as session:
        assert files.prune(session, service.tools.store, now=late) == 1
        assert session.scalar(select(func.count()).select_from(FilePart)) == 0


def test_a_job_stays_until_its_batch_has_taken_note_of_it(
    service: Service, sessions: sessionmaker[Session]
) -> None:
    batch_id = service.accepted(lines(1))
    service.complete()
    (job,) = service.jobs(batch_id)
    with sessions.begin() as session:
        late = database_now(session).replace(year=2100)
        assert not deletion.remove(session, job.id, tenant_id=DEFAULT_TENANT)
        assert deletion.prune_jobs(session, before=late) == 0
    service.settle()
    with sessions.begin() as session:
        assert deletion.prune_jobs(session, before=late) == 1
    assert service.outcome(batch_id) == (["line-0"], [])


def test_a_file_that_grows_cannot_be_deleted(service: Service, sessions: sessionmaker[Session]) -> None:
    batch_id = service.accepted(lines(2))
    service.complete(1)
    service.settle()
    output = service.batch(batch_id).output_file_id
    assert output is not None
    with sessions.begin() as session, pytest.raises(ConflictError):
        files.remove(session, output, tenant_id=DEFAULT_TENANT)
    with sessions() as session:
        assert session.get_one(File, output).state == FileState.GROWING


def test_long_prompts_are_left_to_be_counted(service: Service) -> None:
    batch_id = service.accepted([chat_line("long", "word " * 1000, model=MODEL), *lines(1)])
    assert [job.state for job in service.jobs(batch_id)] == [JobState.PREPARING, JobState.QUEUED]


def test_a_line_that_the_database_refuses_fails_alone(
    service: Service, sessions: sessionmaker[Session]
) -> None:
    with refusing(sessions, "BEFORE INSERT ON jobs FOR EACH ROW WHEN (NEW.batch_line IN (3, 8))"):
        batch_id = service.accepted(lines(10))
        service.advance()
    assert [job.batch_line for job in service.jobs(batch_id)] == [1, 2, 4, 5, 6, 7, 9, 10]
    assert service.batch(batch_id).num_failed == 2


def test_an_output_that_readers_would_break_apart_stays_one_line(service: Service) -> None:
    batch_id = service.accepted([chat_line("a\u2028b", "question", model=MODEL)])
    service.complete()
    service.settle()
    output = service.batch(batch_id).output_file_id
    assert output is not None
    with service.sessions() as session:
        content = b"".join(files.read_chunks(session, output, service.tools.store)).decode()
    assert len(content.splitlines()) == 1
    assert service.outcome(batch_id) == (["a\u2028b"], [])


def test_the_custom_ids_of_jobs_are_those_of_the_lines(service: Service) -> None:
    batch_id = service.accepted([{**lines(1)[0], "custom_id": "x" * 512}])
    with service.sessions() as session:
        assert session.scalar(select(Job.custom_id).where(Job.batch_id == batch_id)) == "x" * 512


def test_a_batch_of_nothing_that_would_run_is_estimated_to_take_no_time(session: Session) -> None:
    idle = EngineState([], [], Budget(free_slots=4, free_blocks=100, idle=True), 4, Speed(0.1, 0.001))
    assert seconds_until_done(session, Estimate(num_lines=1, num_faults=1), MODEL, [idle]) == 0
    one = Estimate(num_lines=1, prompt_tokens=10, max_output_tokens=100)
    assert seconds_until_done(session, one, MODEL, [idle]) > 0
