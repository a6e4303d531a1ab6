"""Lines of a batch with several choices: each choice is a job, and each line has one end."""

from collections.abc import Callable, Iterable
from uuid import UUID

import pytest
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session, sessionmaker

import ending
from batch_support import Service, lines, tools
from jobs import lifecycle
from jobs.batches.ahead import Ahead
from jobs.batches.line_requests import LineRequest
from jobs.models import DEFAULT_TENANT, Job
from jobs.models.tenant import UsageEntry
from jobs.settings import LimitSettings
from jobs.states import JobState
from jobs.states.batch import Endpoint
from openai_support import chat_line
from support import MODEL, claim_one, refusing, register_engine


@pytest.fixture
def service(sessions: sessionmaker[Session]) -> Service:
    return Service(sessions)


def test_a_line_has_one_answer_with_all_of_its_choices(
    service: Service, sessions: sessionmaker[Session]
) -> None:
    batch_id = service.accepted([*lines(2, n=3, temperature=1.0, seed=5), *lines(3)[2:]])
    jobs = service.jobs(batch_id)
    assert sorted((job.batch_line, job.choice, job.num_choices) for job in jobs) == [
        (1, 0, 3),
        (1, 1, 3),
        (1, 2, 3),
        (2, 0, 3),
        (2, 1, 3),
        (2, 2, 3),
        (3, 0, None),
    ]
    assert len({job.text_id for job in jobs if job.batch_line == 1}) == 1, "they share the prompt"
    seeds = [job.sampling.get("seed") for job in jobs if job.batch_line == 1]
    assert 5 in seeds
    assert len(set(seeds)) == 3
    while not service.batch(batch_id).is_terminal:
        service.complete(1)
        service.settle()
        batch = service.batch(batch_id)
        ended = {job.batch_line for job in jobs} - {
            job.batch_line for job in service.jobs(batch_id) if job.finalized_at is None
        }
        assert batch.num_completed == len(ended), "a line is written once all of its choices have ended"
    assert (batch.state, batch.num_completed, batch.num_failed) == ("completed", 3, 0)
    assert batch.output_file_id is not None
    written = {each["custom_id"]: each["response"]["body"] for each in service.read(batch.output_file_id)}  # type: ignore[index]  # JSON
    assert [each["index"] for each in written["line-1"]["choices"]] == [0, 1, 2]
    assert [each["index"] for each in written["line-2"]["choices"]] == [0]
    usage, alone = written["line-1"]["usage"], written["line-2"]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (alone["prompt_tokens"], 9)
    assert usage["total_tokens"] == usage["prompt_tokens"] + 9
    assert batch.output_tokens == 3 * (3 + 3 + 1)
    with sessions() as session:
        used = session.scalar(select(func.sum(UsageEntry.prompt_tokens)))
    assert used == batch.input_tokens, "usage counts the prompt of a line once"


def _fail(session: Session) -> None:
    ending.fail(session, claim_one(session).lease, {"code": "engine_error", "message": "It broke."})


def _cancel(session: Session) -> None:
    queued = session.scalars(select(Job.id).where(Job.state == JobState.QUEUED)).first()
    assert queued is not None
    lifecycle.cancel(session, queued, tenant_id=DEFAULT_TENANT)


@pytest.mark.parametrize(("end", "code"), [(_fail, "engine_error"), (_cancel, "request_cancelled")])
def test_a_line_fails_whole_and_its_other_choices_are_cancelled(
    service: Service, sessions: sessionmaker[Session], end: Callable[[Session], None], code: str
) -> None:
    batch_id = service.accepted(lines(1, n=3))
    service.complete(1)
    with sessions.begin() as session:
        end(session)
    service.settle()
    batch = service.batch(batch_id)
    assert (batch.state, batch.num_completed, batch.num_failed) == ("completed", 0, 1)
    assert {job.state for job in service.jobs(batch_id)} <= {"completed", "failed", "cancelled"}
    assert batch.error_counts == {code: 1}
    assert service.outcome(batch_id) == ([], ["line-0"])


def test_a_batch_that_is_cancelled_or_expires_ends_each_line_once(service: Service) -> None:
    cancelled, expired = service.accepted(lines(2, n=2)), service.accepted(lines(2, n=2))
    service.complete(1)
    service.cancel(cancelled)
    service.end_window(expired)
    service.settle()
    for batch_id, state in ((cancelled, "cancelled"), (expired, "expired")):
        batch = service.batch(batch_id)
        assert (batch.state, batch.num_completed, batch.num_stopped) == (state, 0, 2)
        assert service.outcome(batch_id) == ([], ["line-0", "line-1"])


@pytest.mark.parametrize("of_line", ["choice = 0", "choice = 1", "choice IN (1, 2)", "choice >= 0"])
def test_a_line_fails_whole_if_the_database_refuses_some_of_its_inputs(
    service: Service, of_line: str
) -> None:
    refused = f"NEW.batch_line IN (2, 3) AND NEW.{of_line}"
    with refusing(service.sessions, f"BEFORE INSERT ON jobs FOR EACH ROW WHEN ({refused})"):
        batch_id = service.accepted([_embedded(number) for number in range(4)], endpoint=Endpoint.EMBEDDINGS)
    jobs = service.jobs(batch_id)
    assert sorted((job.batch_line, job.choice) for job in jobs) == [
        (line, choice) for line in (1, 4) for choice in range(3)
    ]
    with service.sessions.begin() as session:
        register_engine(session)
        session.execute(update(Job).values(state="cancelled", finalized_at=func.clock_timestamp()))
    service.settle()
    batch = service.batch(batch_id)
    assert (batch.state, batch.num_failed, batch.num_completed) == ("completed", 4, 0)
    assert batch.error_counts == {"internal_error": 2, "request_cancelled": 2}
    assert service.outcome(batch_id) == ([], ["line-0", "line-1", "line-2", "line-3"])
    assert all(job.is_reported for job in service.jobs(batch_id))


def _embedded(number: int) -> dict[str, object]:
    body = {"model": MODEL, "input": [f"line {number}, input {each}" for each in range(3)]}
    return {"custom_id": f"line-{number}", "method": "POST", "url": "/v1/embeddings", "body": body}


def test_choices_take_room_in_the_quota_and_a_line_is_expanded_whole(service: Service) -> None:
    service.tools = tools(limits=LimitSettings(max_jobs=8))
    batch_id = service.create(lines(4, n=3))
    while service.advance():
        service.settle_validation()
    service.settle_validation()
    service.settle()
    assert sorted(job.batch_line or 0 for job in service.jobs(batch_id)) == [1, 1, 1, 2, 2, 2]
    service.complete()
    service.settle()
    service.complete()
    service.settle()
    batch = service.batch(batch_id)
    assert (batch.state, batch.num_completed) == ("completed", 4)


def test_more_choices_than_one_transaction_takes_are_all_answered(service: Service) -> None:
    batch_id = service.accepted(lines(150, n=16))
    assert len(service.jobs(batch_id)) == 2400
    with service.sessions.begin() as session:
        register_engine(session)
        session.execute(
            update(Job).values(state="cancelled", finalized_at=func.clock_timestamp(), stop_reason=None)
        )
    service.settle()
    assert service.batch(batch_id).num_failed == 150


def test_what_a_line_may_not_ask_for_is_its_own_error(service: Service) -> None:
    batch_id = service.accepted(
        [chat_line("many", model=MODEL, n=17), chat_line("best", model=MODEL, best_of=2)]
    )
    service.settle()
    batch = service.batch(batch_id)
    assert batch.num_failed == 2
    assert batch.error_file_id is not None
    params = [each["response"]["body"]["error"]["param"] for each in service.read(batch.error_file_id)]  # type: ignore[index]  # JSON
    assert params == ["n", "best_of"]


class WatchedAhead(Ahead[Iterable[LineRequest]]):
    """Counts the jobs that are made ahead."""

    def __init__(self) -> None:
        super().__init__()
        self.num_jobs: list[int] = []

    def begin(self, batch_id: UUID, key: object, make: Callable[[], Iterable[LineRequest]]) -> None:
        def counted() -> Iterable[LineRequest]:
            found = list(make())
            self.num_jobs.append(sum(len(each.specs) for each in found))
            return found

        super().begin(batch_id, key, counted)


def test_lines_with_many_jobs_are_read_ahead_up_to_a_slice_and_none_is_left_out(
    sessions: sessionmaker[Session],
) -> None:
    ahead = WatchedAhead()
    service = Service(sessions, tools(ahead=ahead))
    many = [
        line | {"custom_id": f"many-{place}"} for place, line in enumerate(lines(150, n=16, temperature=1.0))
    ]
    batch_id = service.accepted([*lines(1000), *many])
    assert ahead.num_jobs == [2000]
    jobs = service.jobs(batch_id)
    assert len(jobs) == 1000 + 150 * 16
    assert {job.batch_line for job in jobs} == set(range(1, 1151))
    assert service.batch(batch_id).is_expanded
