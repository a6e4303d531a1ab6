"""What workers promise of jobs on a real engine that takes and gives token ids; a module of tests takes all.

That module has the fixtures `fed` (the engine, which runs nothing else) and `queue`, with its tokenizer.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

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


class Restartable(Protocol):
    """A server that comes back on its port."""

    def start(self) -> object:
        """Start it and wait until it is ready."""

    def kill(self) -> None:
        """Kill it with all its processes."""


@dataclass(frozen=True)
class Fed:
    """An engine that workers feed.

    Attributes:
        settings: of such a worker.
        prompt: a text whose answer takes some seconds.
        long: most tokens of that answer.
        is_idle: the engine runs nothing.
        server: it can be killed and started again; None: other tests do that.
        known: the ids of that answer; None: they are found out.
    """

    settings: Settings
    prompt: str
    long: int
    is_idle: Callable[[], bool]
    server: Restartable | None = None
    known: list[int] | None = None


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
    if fed.known is None:
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
    queue.rescue()
    with running_worker(fed.settings, queue.tokenizer):
        ended = queue.ended(job_id)
        uncut = fed.known or _uncut(queue, fed)
    assert (ended.state, ended.num_rescues, ended.attempt) == ("completed", 1, 0)
    ids = queue.result_ids(job_id)
    assert ids[: len(kept)] == kept
    assert len(ids) == ended.completion_tokens
    result = queue.result(job_id)
    assert result is not None
    assert result.output == queue.tokenizer.decode(ids)
    assert ids == uncut


def _uncut(queue: Queue, fed: Fed) -> list[int]:
    job_id = queue.submit(fed.prompt, max_tokens=fed.long)
    queue.ended(job_id)
    return queue.result_ids(job_id)


def test_a_job_keeps_its_ids_when_its_engine_is_killed_and_comes_back(queue: Queue, fed: Fed) -> None:
    assert fed.server is not None
    with running_worker(fed.settings, queue.tokenizer):
        job_id = queue.submit(fed.prompt, max_tokens=fed.long)
        eventually(lambda: len(queue.saved_ids(job_id)) > fed.long // 4)
        fed.server.kill()
        queue.when(job_id, lambda job: job.state == "queued")
        kept = queue.saved_ids(job_id)
        assert len(kept) > fed.long // 4
        fed.server.start()
        ended = queue.ended(job_id)
    assert (ended.state, ended.attempt, ended.num_rescues) == ("completed", 0, 1)
    ids = queue.result_ids(job_id)
    assert ids[: len(kept)] == kept
    # No id of the answer comes twice in a row: a lost or doubled one would show.
    assert ids == fed.known


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
