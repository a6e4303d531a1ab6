"""Worker processes: signals, kills, and a broker that is not there."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import SecretStr
from sqlalchemy import update

from cli.stack.servers.valkey import EmbeddedValkey
from jobs import doorbell, lifecycle
from jobs.database import database_now, transaction
from jobs.models import Job
from jobs.settings import Settings
from local_engine import free_ports
from support import PATIENCE, eventually
from worker.celery_app import make_app
from worker_support import Queue, WorkerProcess


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Callable[[str, Settings], WorkerProcess]]:
    """Starts a worker process; none is left behind."""
    started: list[WorkerProcess] = []

    def start(role: str, settings: Settings) -> WorkerProcess:
        started.append(WorkerProcess(role, settings, tmp_path / f"{role}-{len(started)}.log"))
        return started[-1]

    yield start
    for each in started:
        each.end()


Spawn = Callable[[str, Settings], WorkerProcess]


def without_broker(settings: Settings) -> Settings:
    (port,) = free_ports(1)
    url = SecretStr(f"redis://:not-shown@127.0.0.1:{port}/0")
    return settings.model_copy(update={"broker": settings.broker.model_copy(update={"url": url})})


def test_sigterm_gives_running_jobs_back(
    queue: Queue, feeding: Callable[..., Settings], spawn: Spawn
) -> None:
    settings = feeding(shutdown_grace_seconds=1)
    worker = spawn("inference", settings)
    job_ids = [queue.submit(f"Job {number}.", max_tokens=30_000) for number in range(4)]
    for job_id in job_ids:
        queue.streaming(job_id)
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait(timeout=PATIENCE) == 0
    jobs = [queue.job(job_id) for job_id in job_ids]
    assert [(job.state, job.attempt, job.num_rescues) for job in jobs] == [("queued", 0, 0)] * 4
    assert queue.reservations() == []


def test_sigterm_lets_jobs_end_within_the_grace(
    queue: Queue, feeding: Callable[..., Settings], spawn: Spawn
) -> None:
    worker = spawn("inference", feeding(shutdown_grace_seconds=60))
    job_id = queue.submit("Job.", max_tokens=4000)
    queue.streaming(job_id)
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait(timeout=PATIENCE) == 0
    job = queue.job(job_id)
    assert (job.state, job.completion_tokens) == ("completed", 4000)


def test_jobs_move_though_the_broker_was_never_there(
    queue: Queue, feeding: Callable[..., Settings], spawn: Spawn
) -> None:
    settings = without_broker(feeding())
    workers = [spawn("inference", settings), spawn("service", settings)]
    job_ids = [queue.submit(f"Job {number}.", max_tokens=20, is_counted=False) for number in range(5)]
    assert {queue.ended(job_id).state for job_id in job_ids} == {"completed"}
    for worker in workers:
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(timeout=PATIENCE) == 0
        assert "not-shown" not in worker.log.read_text()


def test_jobs_move_and_workers_end_while_the_broker_is_frozen(
    queue: Queue,
    feeding: Callable[..., Settings],
    spawn: Spawn,
    tmp_path: Path,
) -> None:
    broker = EmbeddedValkey(tmp_path / "valkey")
    broker.start()
    try:
        found = feeding()
        url = SecretStr(broker.url)
        settings = found.model_copy(update={"broker": found.broker.model_copy(update={"url": url})})
        workers = [spawn("inference", settings), spawn("service", settings)]
        queue.ended(queue.submit("First.", max_tokens=3, is_counted=False))
        pid = broker.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        job_ids = [queue.submit(f"Job {number}.", max_tokens=20, is_counted=False) for number in range(5)]
        assert {queue.ended(job_id).state for job_id in job_ids} == {"completed"}
        for worker in workers:
            worker.process.send_signal(signal.SIGTERM)
            assert worker.process.wait(timeout=PATIENCE) == 0
    finally:
        broker.kill()  # a frozen process cannot end by itself


def test_the_doorbell_wakes_a_worker_that_would_sleep(
    queue: Queue, feeding: Callable[..., Settings], spawn: Spawn
) -> None:
    settings = feeding(claim_poll_seconds=600)
    worker = spawn("inference", settings)
    eventually(lambda: worker.said("engine.ready"))
    app = make_app(settings.broker)
    with closing(doorbell.connect(settings.broker.url.get_secret_value(), socket_timeout=1)) as broker:
        # The worker receives messages once its consumer is up, which follows the dispatcher.
        eventually(lambda: any(each["psub"] != "0" for each in broker.client_list()))
    job_id = queue.submit("Say something.", max_tokens=3)
    assert doorbell.ring(app, doorbell.INFERENCE)
    assert queue.ended(job_id).state == "completed"


def test_jobs_of_a_killed_worker_are_rescued_and_complete_once(
    queue: Queue, feeding: Callable[..., Settings], spawn: Spawn
) -> None:
    settings = feeding(lease_seconds=3, renew_seconds=1)
    worker = spawn("inference", settings)
    job_ids = [queue.submit(f"Job {number}.", max_tokens=3000) for number in range(4)]
    for job_id in job_ids:
        queue.streaming(job_id)
    worker.process.kill()
    spawn("inference", settings)
    spawn("service", settings)
    ended = [queue.ended(job_id) for job_id in job_ids]
    assert [(job.state, job.attempt, job.num_rescues) for job in ended] == [("completed", 0, 1)] * 4
    eventually(lambda: not queue.reservations())


def test_a_rescued_job_can_be_claimed_again_at_once(
    queue: Queue, feeding: Callable[..., Settings], spawn: Spawn
) -> None:
    worker = spawn("inference", feeding())
    job_id = queue.submit("Job.", max_tokens=100_000)
    before = queue.streaming(job_id).lease_id
    with transaction(queue.sessions) as session:
        session.execute(update(Job).values(lease_expires_at=database_now(session) - timedelta(seconds=1)))
        lifecycle.rescue(session, now=database_now(session), max_rescues=2)
    job = queue.when(job_id, lambda job: job.lease_id not in (before, None))
    assert (job.state, job.num_rescues) == ("running", 1)
    assert worker.process.poll() is None
