"""Workers over real llama.cpp: a killed one's job goes on with the ids that it saved."""

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import pytest
from pydantic import SecretStr

from cli.stack.servers.valkey import EmbeddedValkey
from jobs import checkpoints, lifecycle
from jobs.database import transaction
from jobs.models import DEFAULT_TENANT
from jobs.prompts.tokenizer import Tokenizer, unpack_ids
from jobs.settings import (
    BrokerSettings,
    DatabaseSettings,
    EngineSettings,
    JobSettings,
    Settings,
    TokenizerSettings,
)
from llama_support import LlamaServer, running_llama
from support import eventually
from worker_support import ENGINE, MODEL, Queue, WorkerProcess, running_worker

PROMPT = "Write a long story about a river."
LONG = 240  # tokens: some seconds of one thread


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaServer]:
    with running_llama(tmp_path_factory.mktemp("llama")) as server:
        yield server


@pytest.fixture(scope="module")
def tokenizer(llama: LlamaServer) -> Tokenizer:
    return Tokenizer.load(str(llama.tokenizer))


@pytest.fixture
def settings(database_settings: DatabaseSettings, valkey: EmbeddedValkey, llama: LlamaServer) -> Settings:
    return Settings(
        database=database_settings,
        broker=BrokerSettings(url=SecretStr(valkey.url), socket_timeout_seconds=1),
        engine=EngineSettings(name=ENGINE, model=MODEL, url=llama.url, time_scale=0.1),
        tokenizer=TokenizerSettings(path=str(llama.tokenizer)),
        jobs=JobSettings(
            retry_backoff_seconds=0.2,
            shutdown_grace_seconds=0.2,
            checkpoint_seconds=0.3,
            lease_seconds=8,  # a starved worker loses no lease that this test counts
            renew_seconds=1,
        ),
    )


def saved(queue: Queue, job_id: UUID) -> list[int]:
    with queue.sessions() as session:
        found = checkpoints.load(session, job_id)
        return [] if found is None else unpack_ids(found.packed_ids).tolist()


def test_a_killed_worker_s_answer_keeps_its_ids_and_equals_the_uncut_one(
    queue: Queue, settings: Settings, tmp_path: Path, when_idle: Callable[[], bool]
) -> None:
    # The server now has the prompt in its cache, for all runs alike: otherwise their rounding differs.
    with running_worker(settings, queue.tokenizer):
        queue.ended(queue.submit(PROMPT, max_tokens=1))
    job_id = queue.submit(PROMPT, max_tokens=LONG)
    first = WorkerProcess("inference", settings, tmp_path / "first.log")
    try:
        queue.when(job_id, lambda job: job.completion_tokens > LONG // 4)
        eventually(lambda: len(saved(queue, job_id)) > LONG // 8)
    finally:
        first.end()
    kept = saved(queue, job_id)
    assert kept
    when_idle()  # its stream broke
    service = WorkerProcess("service", settings, tmp_path / "service.log")
    second = WorkerProcess("inference", settings, tmp_path / "second.log")
    try:
        ended = queue.ended(job_id)
    finally:
        second.end()
        service.end()
    assert (ended.state, ended.num_rescues, ended.attempt) == ("completed", 1, 0)
    result = queue.result(job_id)
    assert result is not None
    ids = unpack_ids(result.output_ids).tolist()
    assert ids[: len(kept)] == kept
    assert len(ids) == ended.completion_tokens
    assert result.output == queue.tokenizer.decode(ids)
    with running_worker(settings, queue.tokenizer):
        uncut = queue.submit(PROMPT, max_tokens=LONG)
        queue.ended(uncut)
        eventually(lambda: not queue.reservations())
    whole = queue.result(uncut)
    assert whole is not None
    assert ids == unpack_ids(whole.output_ids).tolist()


def test_a_cancelled_job_leaves_the_engine_and_its_blocks(
    queue: Queue, settings: Settings, when_idle: Callable[[], bool]
) -> None:
    with running_worker(settings, queue.tokenizer):
        job_id = queue.submit("Count without end: one, two, three,", max_tokens=1500)
        queue.streaming(job_id)
        with transaction(queue.sessions) as session:
            lifecycle.cancel(session, job_id, tenant_id=DEFAULT_TENANT)
        assert queue.ended(job_id).state == "cancelled"
        when_idle()
        eventually(lambda: not queue.reservations())
        again = queue.ended(queue.submit("Say yes.", max_tokens=5))
        assert again.state == "completed"


@pytest.fixture
def when_idle(llama: LlamaServer) -> Callable[[], bool]:
    return lambda: eventually(llama.is_idle)
