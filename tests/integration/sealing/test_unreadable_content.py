"""Content that cannot be decrypted: its job fails with that code, and what is beside it does not notice."""

from collections.abc import Callable, Iterator
from uuid import UUID

import httpx2
import pytest
from sqlalchemy import update
from sqlalchemy.orm import Session, sessionmaker

import ending
from api_server import Serve, error_of
from batch_support import Service, lines
from jobs.batches.expansion import MAX_FAILURES
from jobs.checkpoints import Output
from jobs.database import transaction
from jobs.engines import reservations
from jobs.models import Batch, FilePart, Job
from jobs.preparation import Counting
from jobs.sealing.content import key_name
from jobs.settings import Settings
from jobs.states import FinishReason
from sealed.sealers import SEALS_OTHERWISE, VARIABLES, sealing
from support import (
    CAPACITY,
    WordCounter,
    claim_one,
    output_of,
    prepare_all,
    register_engine,
    runner_of,
    spec,
    submit_one,
)
from webhook_support import Receiver, add_endpoint, deliver_all, dispatch_states
from worker_support import Queue, running_worker

Sessions = sessionmaker[Session]

# Of the key that nobody has who reads here.
MISSING = key_name(SEALS_OTHERWISE.seal_bytes(b"", ""))
CODE = "content_unreadable"
MESSAGE = f"Stored content cannot be decrypted: the key {MISSING} that sealed it is not configured here."


def complete_next(sessions: Sessions, text: str = "said") -> UUID:
    with transaction(sessions) as session:
        lease = claim_one(session).lease
        assert ending.complete(session, lease, output_of(text), FinishReason.STOP)
        return lease.job_id


def test_a_prompt_fails_its_own_job_alone_when_it_is_counted(sealed: Sessions, otherwise: Sessions) -> None:
    submitted: dict[str, UUID] = {}
    for name, sessions in (("first", sealed), ("poison", otherwise), ("last", sealed)):
        with transaction(sessions) as session:
            submitted[name] = submit_one(session, spec(None, prompt=f"count {name}")).id
    together = runner_of(sealed).run_set(Counting(WordCounter(), CAPACITY))
    assert together is not None
    prepare_all(sealed)
    with sealed() as session:
        found = {name: session.get_one(Job, job_id) for name, job_id in submitted.items()}
    assert {name: job.state for name, job in found.items()} == {
        "first": "queued",
        "poison": "failed",
        "last": "queued",
    }
    assert found["poison"].error == {"code": CODE, "message": MESSAGE, "details": {"key": MISSING}}


def test_a_prompt_fails_its_own_job_alone_when_it_runs(
    queue: Queue, feeding: Callable[..., Settings], sealed: Sessions, otherwise: Sessions
) -> None:
    broken = Queue(otherwise, queue.tokenizer).submit("Broken.", max_tokens=5)
    healthy = Queue(sealed, queue.tokenizer)
    whole = [healthy.submit(f"Whole {number}.", max_tokens=100) for number in range(8)]
    settings = sealing(feeding())
    with running_worker(settings, queue.tokenizer):
        assert {healthy.ended(job_id).state for job_id in whole} == {"completed"}
        job = healthy.ended(broken)
    assert (job.state, job.attempt) == ("failed", 0)
    assert job.error == {"code": CODE, "message": MESSAGE}
    for job_id in whole:
        result = healthy.result(job_id)
        assert result is not None
        assert len(healthy.result_ids(job_id)) == 100


def test_a_checkpoint_fails_its_own_job_alone(
    queue: Queue, feeding: Callable[..., Settings], sealed: Sessions, otherwise: Sessions
) -> None:
    healthy = Queue(sealed, queue.tokenizer)
    broken = healthy.submit("Broken.", max_tokens=50)
    with transaction(otherwise) as session:
        register_engine(session)
        lease = claim_one(session).lease
        saved = Output("said", ids=[1, 2, 3], num_tokens=3)
        assert ending.checkpoint(session, lease, saved)
        assert ending.release(session, lease, saved) == "queued"
        reservations.close(session, lease.lease_id)
    whole = healthy.submit("Whole.", max_tokens=50)
    with running_worker(sealing(feeding()), queue.tokenizer):
        assert healthy.ended(whole).state == "completed"
        job = healthy.ended(broken)
    assert job.state == "failed"
    assert job.error == {"code": CODE, "message": MESSAGE}


def test_a_result_is_an_error_line_of_its_batch_and_the_others_are_written(
    sealed: Sessions, otherwise: Sessions
) -> None:
    service = Service(sealed)
    batch_id = service.accepted(lines(5))
    service.complete(2)
    with transaction(sealed) as session:
        register_engine(session)
    broken = complete_next(otherwise)
    service.complete()
    service.settle()
    batch = service.batch(batch_id)
    assert (batch.state, batch.num_completed, batch.num_failed) == ("completed", 4, 1)
    (line,) = service.read(batch.error_file_id)
    assert [line["custom_id"]] == [job.custom_id for job in service.jobs(batch_id) if job.id == broken]
    response = line["response"]
    assert isinstance(response, dict)
    assert response["status_code"] == 500
    assert (response["body"]["error"]["code"], response["body"]["error"]["message"]) == (CODE, MESSAGE)
    assert len(service.read(batch.output_file_id)) == 4


def test_lines_that_cannot_be_read_any_more_hold_up_no_other_batch(
    sealed: Sessions, otherwise: Sessions
) -> None:
    service = Service(sealed)
    broken, good = service.create(lines(3)), service.create(lines(2))
    service.settle_validation()
    with transaction(otherwise) as session:  # as if the key were gone since
        file_id = service.batch(broken).input_file_id
        session.execute(update(FilePart).where(FilePart.file_id == file_id).values(content=b"lines"))
    service.settle()
    service.complete()
    service.settle()
    assert service.outcome(good) == (["line-0", "line-1"], [])
    waiting = service.batch(broken)
    assert (waiting.state, waiting.num_failures > 0) == ("in_progress", True)
    with transaction(sealed) as session:
        tried = update(Batch).where(Batch.id == broken)
        session.execute(tried.values(num_failures=MAX_FAILURES, run_after=None))
    service.settle()
    ended = service.batch(broken)
    assert (ended.state, ended.num_failed, service.jobs(broken)) == ("completed", 3, [])


def test_a_result_costs_its_own_webhook_alone(
    sealed: Sessions, otherwise: Sessions, receiver: Receiver
) -> None:
    add_endpoint(sealed, receiver.url(), events=("*",), includes_output=True)
    with transaction(sealed) as session:
        register_engine(session)
        for _ in range(3):
            submit_one(session)
    for sessions in (sealed, otherwise, sealed):
        complete_next(sessions)
    deliver_all(sealed)
    assert [each.event["data"]["output"] for each in receiver.seen] == ["said"] * 2
    assert dispatch_states(sealed) == ["delivered", "delivered", "failed"]


@pytest.fixture
def client(serve: Serve, sessions: Sessions) -> Iterator[httpx2.Client]:  # noqa: ARG001  # without jobs
    with serve(**VARIABLES) as process, process.client() as client:
        yield client


def test_a_caller_is_told_so_and_gets_all_else(
    client: httpx2.Client, sealed: Sessions, otherwise: Sessions
) -> None:
    asked = {"input": "What is it?", "max_tokens": 16}
    paths = [client.post("/v1/jobs", json=asked).headers["location"] for _ in range(2)]
    model = client.get(paths[0]).json()["model"]
    for sessions in (otherwise, sealed):
        with transaction(sessions) as session:
            register_engine(session, model=model)
        complete_next(sessions)
    answers = {path: client.get(f"{path}/result") for path in paths}
    (good,) = (each for each in answers.values() if each.status_code == 200)
    assert good.json()["output"] == "said"
    (bad,) = (each for each in answers.values() if each.status_code == 500)
    error = error_of(bad)
    assert (error["code"], error["message"]) == (CODE, MESSAGE)
    assert bad.headers["x-should-retry"] == "false"
    assert {client.get(path).json()["state"] for path in paths} == {"completed"}
