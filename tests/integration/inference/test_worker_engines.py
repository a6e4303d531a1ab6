"""Several workers and engines share one queue."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import pytest

from cli.stack.servers.engine_options import EngineOptions
from cli.stack.servers.valkey import EmbeddedValkey
from jobs.prompts.tokenizer import ensure_default_tokenizer
from jobs.settings import DatabaseSettings, Settings
from local_engine import KillableEngine, RunningEngine, killable_engine
from support import eventually
from worker_support import Queue, WorkerProcess, settings_for

Start = Callable[[Settings], WorkerProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts an inference worker's process; none is left behind."""
    started: list[WorkerProcess] = []

    def run(settings: Settings) -> WorkerProcess:
        process = WorkerProcess("inference", settings, tmp_path / f"worker-{len(started)}.log")
        started.append(process)
        return process

    yield run
    for each in started:
        each.end()


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[KillableEngine]:
    """An engine so slow that no answer of 1,500 tokens ends before it is killed."""
    options = EngineOptions(mode="synthetic", tokenizer_dir=ensure_default_tokenizer())
    with killable_engine(tmp_path, options) as engine:
        yield engine


def named(settings: Settings, name: str) -> Settings:
    return settings.model_copy(update={"engine": settings.engine.model_copy(update={"name": name})})


def test_jobs_of_an_engine_that_died_go_on_at_the_other_one(
    queue: Queue,
    start: Start,
    mortal: KillableEngine,
    synthetic: RunningEngine,
    database_settings: DatabaseSettings,
    valkey: EmbeddedValkey,
) -> None:
    def submit(number: int) -> UUID:
        return queue.submit(f"Job {number}. [[tokens=1500]]", max_tokens=2000)

    start(named(settings_for(database_settings, valkey.url, mortal.engine), "engine-mortal"))
    stranded = [submit(number) for number in range(4)]
    assert [queue.streaming(each).engine_name for each in stranded] == ["engine-mortal"] * 4
    start(named(settings_for(database_settings, valkey.url, synthetic), "engine-other"))
    jobs = stranded + [submit(number) for number in range(4, 8)]
    for each in jobs:
        queue.when(each, lambda job: job.completion_tokens > 0)
    mortal.kill()
    ended = [queue.ended(each) for each in jobs]
    assert [(job.state, job.finish_reason, job.completion_tokens, job.attempt) for job in ended] == [
        ("completed", "stop", 1500, 0)
    ] * 8
    assert [job.num_rescues for job in ended] == [1] * 4 + [0] * 4
    assert {job.engine_name for job in ended} == {"engine-other"}


def test_two_workers_on_one_engine_never_exceed_it(
    queue: Queue,
    start: Start,
    synthetic: RunningEngine,
    database_settings: DatabaseSettings,
    valkey: EmbeddedValkey,
) -> None:
    settings = settings_for(database_settings, valkey.url, synthetic)
    jobs = [queue.submit(f"Job {number}. [[tokens=400]]", max_tokens=600) for number in range(24)]
    workers = [start(settings), start(settings)]
    most: Counter[str] = Counter()

    def all_ended() -> bool:
        gauges = synthetic.gauges()
        for name in ("active", "waiting"):
            most[name] = max(most[name], int(gauges[name]))
        return all(queue.job(each).finalized_at is not None for each in jobs)

    eventually(lambda: all_ended() or any(worker.said("job.ended") for worker in workers))
    (busier,) = [worker for worker in workers if worker.said("job.ended")][:1]
    busier.process.terminate()  # it gives its jobs back, and the other one, which had no slot, takes over
    eventually(all_ended)
    assert most["active"] <= 4
    assert [queue.job(each).completion_tokens for each in jobs] == [400] * 24
    assert all(worker.said("job.claimed") for worker in workers)
    assert most["waiting"] <= 1  # a slot is free for us a moment before the engine's loop has noticed
