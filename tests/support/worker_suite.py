"""What workers promise of jobs on a real engine that takes and gives token ids; a module of tests takes all.

That module has the fixtures `fed` (the engine, which runs nothing else) and `queue`, with its tokenizer.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import SecretStr

from jobs import lifecycle
from jobs.database import transaction
from jobs.models import DEFAULT_TENANT
from jobs.settings import (
    BrokerSettings,
    DatabaseSettings,
    EngineSettings,
    JobSettings,
    Settings,
    TokenizerSettings,
)
from support import eventually
from worker_support import ENGINE, MODEL, Queue, WorkerProcess, running_worker

# A starved worker loses no lease that a test counts.
_JOBS: Final = JobSettings(
    retry_backoff_seconds=0.2,
    shutdown_grace_seconds=0.2,
    checkpoint_seconds=0.3,
    lease_seconds=8,
    renew_seconds=1,
)


@dataclass(frozen=True)
class Fed:
    """An engine that workers feed.

    Attributes:
        settings: of such a worker.
        prompt: a text whose answer takes some seconds.
        long: most tokens of that answer.
        is_idle: the engine runs nothing.
    """

    settings: Settings
    prompt: str
    long: int
    is_idle: Callable[[], bool]


def settings_of_worker(
    database: DatabaseSettings, broker_url: str, engine: EngineSettings, *, tokenizer: str | None = None
) -> Settings:
    """Of one that feeds this engine."""
    return Settings(
        database=database,
        broker=BrokerSettings(url=SecretStr(broker_url), socket_timeout_seconds=1),
        engine=engine.model_copy(update={"name": ENGINE, "model": MODEL}),
        tokenizer=TokenizerSettings(path=tokenizer),
        jobs=_JOBS,
    )


def test_a_killed_worker_s_answer_keeps_its_ids_and_equals_the_uncut_one(
    queue: Queue, fed: Fed, tmp_path: Path
) -> None:
    # The server now has the prompt in its cache, for all runs alike: otherwise their rounding differs.
    with running_worker(fed.settings, queue.tokenizer):
        queue.ended(queue.submit(fed.prompt, max_tokens=1))
    job_id = queue.submit(fed.prompt, max_tokens=fed.long)
    first = WorkerProcess("inference", fed.settings, tmp_path / "first.log")
    try:
        queue.when(job_id, lambda job: job.completion_tokens > fed.long // 4)
        eventually(lambda: len(queue.saved_ids(job_id)) > fed.long // 8)
    finally:
        first.end()
    kept = queue.saved_ids(job_id)
    assert kept
    eventually(fed.is_idle)  # its stream broke
    service = WorkerProcess("service", fed.settings, tmp_path / "service.log")
    second = WorkerProcess("inference", fed.settings, tmp_path / "second.log")
    try:
        ended = queue.ended(job_id)
    finally:
        second.end()
        service.end()
    assert (ended.state, ended.num_rescues, ended.attempt) == ("completed", 1, 0)
    ids = queue.result_ids(job_id)
    assert ids[: len(kept)] == kept
    assert len(ids) == ended.completion_tokens
    result = queue.result(job_id)
    assert result is not None
    assert result.output == queue.tokenizer.decode(ids)
    with running_worker(fed.settings, queue.tokenizer):
        uncut = queue.submit(fed.prompt, max_tokens=fed.long)
        queue.ended(uncut)
        eventually(lambda: not queue.reservations())
    assert ids == queue.result_ids(uncut)


def test_a_cancelled_job_leaves_the_engine_and_its_blocks(queue: Queue, fed: Fed) -> None:
    with running_worker(fed.settings, queue.tokenizer):
        job_id = queue.submit(fed.prompt, max_tokens=6 * fed.long)
        queue.streaming(job_id)
        with transaction(queue.sessions) as session:
            lifecycle.cancel(session, job_id, tenant_id=DEFAULT_TENANT)
        assert queue.ended(job_id).state == "cancelled"
        eventually(fed.is_idle)
        eventually(lambda: not queue.reservations())
        again = queue.ended(queue.submit("Say yes.", max_tokens=5))
        assert again.state == "completed"
