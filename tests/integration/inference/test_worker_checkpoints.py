"""A job goes on from what it has generated, whoever runs it next, and says what it would have said."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from cli.stack.servers.valkey import EmbeddedValkey
from jobs import lifecycle
from jobs.database import transaction
from jobs.models import DEFAULT_TENANT, Checkpoint
from jobs.prompts.tokenizer import unpack_ids
from jobs.settings import DatabaseSettings, Settings
from local_engine import RunningEngine
from support import eventually
from worker_support import Queue, WorkerProcess, running_worker, settings_for

LONG = 5000  # tokens: six seconds of this engine
DOCUMENT = "A document whose answer takes a while. 日本語 and 🙂 too."


@pytest.fixture
def feeding(
    database_settings: DatabaseSettings, valkey: EmbeddedValkey, synthetic: RunningEngine
) -> Callable[..., Settings]:
    return partial(settings_for, database_settings, valkey.url, synthetic, checkpoint_seconds=0.3)


def checkpoints(queue: Queue) -> list[Checkpoint]:
    with queue.sessions() as session:
        return list(session.query(Checkpoint))


def outputs(queue: Queue, job_id: object) -> tuple[str, list[int]]:
    result = queue.result(job_id)  # type: ignore[arg-type]  # a UUID
    assert result is not None
    return result.output, unpack_ids(result.output_ids).tolist()


def test_a_killed_worker_s_long_answer_goes_on_and_equals_the_uninterrupted_one(
    queue: Queue, feeding: Callable[..., Settings], tmp_path: Path
) -> None:
    settings = feeding(lease_seconds=8, renew_seconds=1)  # nobody rescues a lease that a busy machine loses
    whole = queue.submit(DOCUMENT, max_tokens=LONG)
    cut = queue.submit(DOCUMENT, max_tokens=LONG)
    first = WorkerProcess("inference", settings, tmp_path / "first.log")
    try:
        queue.when(cut, lambda job: job.completion_tokens > LONG // 3)
        eventually(lambda: len(checkpoints(queue)) == 2)
    finally:
        first.end()
    kept = {each.job_id: each.num_tokens for each in checkpoints(queue)}
    service = WorkerProcess("service", settings, tmp_path / "service.log")
    second = WorkerProcess("inference", settings, tmp_path / "second.log")
    try:
        resumed = queue.when(cut, lambda job: job.num_rescues == 1 and job.state == "running")
        assert resumed.completion_tokens >= kept[cut] > LONG // 10
        ended = [queue.ended(job_id) for job_id in (whole, cut)]
    finally:
        second.end()
        service.end()
    assert [(job.state, job.finish_reason, job.completion_tokens) for job in ended] == [
        ("completed", "length", LONG)
    ] * 2
    with running_worker(settings, queue.tokenizer):
        uninterrupted = queue.submit(DOCUMENT, max_tokens=LONG)
        queue.ended(uninterrupted)
    assert outputs(queue, cut) == outputs(queue, uninterrupted)
    assert checkpoints(queue) == []


def test_a_warm_shutdown_keeps_what_was_generated(queue: Queue, feeding: Callable[..., Settings]) -> None:
    settings = feeding()
    job_id = queue.submit(DOCUMENT, max_tokens=LONG)
    with running_worker(settings, queue.tokenizer):
        queue.when(job_id, lambda job: job.completion_tokens > LONG // 5)
    released = queue.job(job_id)
    assert (released.state, released.attempt) == ("queued", 0)
    assert released.completion_tokens > LONG // 5
    assert released.first_token_at is not None
    with running_worker(settings, queue.tokenizer):
        assert queue.when(job_id, lambda job: job.state == "running").completion_tokens > LONG // 5
        ended = queue.ended(job_id)
    assert (ended.state, ended.completion_tokens) == ("completed", LONG)
    assert ended.first_token_at == released.first_token_at


def test_cancelling_a_job_that_waits_with_a_checkpoint_keeps_its_partial_output(
    queue: Queue, feeding: Callable[..., Settings]
) -> None:
    job_id = queue.submit(DOCUMENT, max_tokens=LONG)
    with running_worker(feeding(), queue.tokenizer):
        queue.when(job_id, lambda job: job.completion_tokens > 100)
    with transaction(queue.sessions) as session:
        lifecycle.cancel(session, job_id, tenant_id=DEFAULT_TENANT)
    job = queue.job(job_id)
    text, ids = outputs(queue, job_id)
    assert (job.state, job.completion_tokens) == ("cancelled", len(ids))
    assert len(ids) > 100
    assert text
    assert checkpoints(queue) == []


def test_another_tokenizer_s_checkpoint_is_not_continued(
    queue: Queue, feeding: Callable[..., Settings]
) -> None:
    job_id = queue.submit(DOCUMENT, max_tokens=LONG // 5)
    with running_worker(feeding(), queue.tokenizer):
        queue.when(job_id, lambda job: job.completion_tokens > 100)
    with transaction(queue.sessions) as session:
        session.query(Checkpoint).update({"fingerprint": "of another model"})
    with running_worker(feeding(), queue.tokenizer):
        assert queue.ended(job_id).completion_tokens == LONG // 5
