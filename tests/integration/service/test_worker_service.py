"""The service worker's rounds: counting, rescuing, expiring, pruning."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from functools import partial

import pytest
from pydantic import SecretStr
from pytest_httpserver import HTTPServer
from sqlalchemy import delete, select, text, update
from sqlalchemy.orm import Session, sessionmaker

from api_server import WEBHOOK_SECRET
from cli.stack.servers.valkey import EmbeddedValkey
from jobs import doorbell
from jobs.database import database_now, transaction
from jobs.models import Job, PromptText, WebhookDelivery, WebhookEvent
from jobs.preparation import Counting
from jobs.prompts.counter import PromptCounter
from jobs.prompts.tokenizer import Tokenizer
from jobs.settings import (
    BrokerSettings,
    DatabaseSettings,
    JobSettings,
    MaintenanceSettings,
    Settings,
    WebhookSettings,
)
from jobs.states import JobState
from support import (
    CAPACITY,
    eventually,
    job_in,
    prepare_all,
    register_engine,
    runner_of,
    spec,
    submit_one,
)
from worker import maintenance
from worker.celery_app import make_app
from worker.doorbell import WorkerDoorbell
from worker.service import ServiceWorker
from worker_support import Queue

WEBHOOKS = WebhookSettings(secret=SecretStr(WEBHOOK_SECRET), allowed_hosts=("localhost",))


@pytest.fixture
def counter(tokenizer: Tokenizer) -> PromptCounter:
    return PromptCounter(tokenizer)


def the_event(sessions: sessionmaker[Session]) -> WebhookEvent:
    with sessions() as session:
        return session.scalars(select(WebhookEvent)).one()


def tries(sessions: sessionmaker[Session]) -> list[WebhookDelivery]:
    with sessions() as session:
        return list(session.scalars(select(WebhookDelivery).order_by(WebhookDelivery.attempt)))


def test_a_prompt_that_cannot_be_read_fails_its_job_alone(queue: Queue, counter: PromptCounter) -> None:
    with transaction(queue.sessions) as session:
        bad = submit_one(session, spec(None, prompt="no JSON of messages", webhook_url="https://a.example"))
    good = queue.submit("fine", is_counted=False)
    prepare_all(queue.sessions, counter)
    assert queue.job(bad.id).state == "failed"
    assert queue.job(bad.id).error == {
        "code": "invalid_prompt",
        "message": "The stored prompt cannot be read.",
    }
    assert queue.job(good).state == "queued"
    assert the_event(queue.sessions).type == "job.failed"


def test_a_prompt_that_never_fits_fails_with_the_three_numbers(queue: Queue, counter: PromptCounter) -> None:
    job_id = queue.submit("word " * 97_000, max_tokens=10, is_counted=False)
    prepare_all(queue.sessions, counter)
    job = queue.job(job_id)
    assert job.prompt_tokens is not None
    assert 96_000 < job.prompt_tokens <= 97_100, "counting stops where it never fits"
    assert job.state == "failed"
    assert job.error is not None
    assert job.error["code"] == "context_length_exceeded"
    assert job.error["details"] == {
        "prompt_tokens": job.prompt_tokens,
        "max_tokens": 10,
        "limit": 96_000,
        "limit_name": "max_input_len",
        "prompt_tokens_at_least": job.prompt_tokens,
    }


def test_a_round_of_counting_is_bounded(queue: Queue, counter: PromptCounter) -> None:
    for number in range(3):
        queue.submit(f"Text {number}", is_counted=False)
    work = Counting(counter, CAPACITY)
    assert len(runner_of(queue.sessions).run_some(work, limit=2)) == 2


def test_prune_removes_what_is_past_its_retention_and_nothing_else(queue: Queue) -> None:
    with transaction(queue.sessions) as session:
        old = job_in(session, JobState.COMPLETED)
        long_ago = database_now(session) - timedelta(days=31)
        session.execute(update(Job).values(created_at=long_ago, finalized_at=long_ago))
        session.execute(update(WebhookEvent).values(created_at=long_ago))
    with transaction(queue.sessions) as session:
        recent = job_in(session, JobState.COMPLETED)
    removed = maintenance.JobMaintenance(queue.sessions).prune(JobSettings())
    assert (removed["jobs"], removed["events"]) == (1, 1)
    with queue.sessions() as session:
        assert session.get(Job, old.id) is None
        assert session.get(Job, recent.id) is not None


@pytest.fixture
def hook(httpserver: HTTPServer) -> str:
    """The URL of a receiver that is content with everything."""
    httpserver.expect_request("/hook").respond_with_data(status=200)
    return str(httpserver.url_for("/hook"))


# A service worker whose loops look so often.
RunService = Callable[[MaintenanceSettings], AbstractContextManager[ServiceWorker]]
OFTEN = MaintenanceSettings(rescue_seconds=0.2, expire_seconds=0.2, doorbell_seconds=0.2)


@contextmanager
def running_service(
    database: DatabaseSettings,
    broker_url: str,
    tokenizer: Tokenizer,
    maintenance: MaintenanceSettings,
) -> Iterator[ServiceWorker]:
    settings = Settings(
        database=database,
        broker=BrokerSettings(url=SecretStr(broker_url), socket_timeout_seconds=1),
        webhooks=WEBHOOKS,
        maintenance=maintenance,
    )
    broker = doorbell.connect(broker_url, socket_timeout=1)
    worker = ServiceWorker(settings, tokenizer, WorkerDoorbell(broker, make_app(settings.broker)))
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()
        broker.close()


@pytest.fixture
def run_service(
    database_settings: DatabaseSettings, valkey: EmbeddedValkey, tokenizer: Tokenizer
) -> RunService:
    return partial(running_service, database_settings, valkey.url, tokenizer)


def test_the_loops_of_a_service_worker_do_all_of_it(queue: Queue, hook: str, run_service: RunService) -> None:
    with transaction(queue.sessions) as session:
        register_engine(session)
        silent = job_in(session, JobState.RUNNING)
        session.execute(update(Job).values(lease_expires_at=database_now(session)))
    waiting = queue.submit("Count me.", is_counted=False)
    overdue = queue.submit("Too late.", window=timedelta(seconds=0.5), webhook_url=hook)
    misfit = queue.submit("Too long.", max_tokens=130_000)
    with transaction(queue.sessions) as session:
        session.execute(update(Job).where(Job.id == misfit).values(max_tokens=140_000))
    with run_service(OFTEN):
        assert queue.when(silent.id, lambda job: job.state == "queued").num_rescues == 1
        queue.when(waiting, lambda job: job.state == "queued")
        queue.when(overdue, lambda job: job.state == "expired")
        queue.when(misfit, lambda job: job.state == "failed")
        eventually(lambda: [each.outcome for each in tries(queue.sessions)] == ["delivered"])


def test_the_doorbell_of_events_wakes_deliveries_and_leaves_prompts_alone(
    queue: Queue, hook: str, run_service: RunService
) -> None:

    def finish_one() -> None:
        with transaction(queue.sessions) as session:
            session.execute(delete(Job).where(Job.state == JobState.QUEUED))  # another could be claimed
            job_in(session, JobState.COMPLETED, webhook_url=hook)

    rarely = MaintenanceSettings(prepare_seconds=600, deliver_seconds=600)
    finish_one()
    first = queue.submit("Count me.", is_counted=False)
    with run_service(rarely) as worker:
        queue.when(first, lambda job: job.state == "queued")
        eventually(lambda: len(tries(queue.sessions)) == 1)
        finish_one()
        second = queue.submit("Me too.", is_counted=False)
        worker.on_ring(doorbell.EVENTS)
        eventually(lambda: [each.outcome for each in tries(queue.sessions)] == ["delivered"] * 2)
        assert queue.job(second).state == "preparing"
        finish_one()
        worker.on_ring(doorbell.SERVICE)
        queue.when(second, lambda job: job.state == "queued")
        eventually(lambda: [each.outcome for each in tries(queue.sessions)] == ["delivered"] * 3)


def test_a_stored_prompt_that_is_damaged_fails_its_job_alone(queue: Queue, counter: PromptCounter) -> None:
    with transaction(queue.sessions) as session:
        damaged = submit_one(session, spec(None))
        # Bytes that no zstd frame begins with: an error that nobody expects.
        session.execute(update(PromptText).values(body=b"no frame"))
    other = queue.submit("Count me.", is_counted=False)
    prepare_all(queue.sessions, counter)
    assert (queue.job(damaged.id).state, queue.job(other).state) == ("failed", "queued")


def test_a_stopping_worker_renews_leases_until_its_work_ends(queue: Queue, run_service: RunService) -> None:
    job_id = queue.submit("Count me.", is_counted=False)
    session = queue.sessions()
    session.execute(text("LOCK TABLE texts IN ACCESS EXCLUSIVE MODE"))  # counting waits for it
    with run_service(MaintenanceSettings(lease_seconds=8)) as worker, session:
        queue.when(job_id, lambda job: job.lease_id is not None)
        worker.begin_stop()
        for _ in range(2):
            before = queue.job(job_id).lease_expires_at
            queue.when(job_id, lambda job, before=before: job.lease_expires_at != before)
