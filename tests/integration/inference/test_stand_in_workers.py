"""Workers over stand-ins of HTTP engines that do not run here: the worker dies, or the engine, in mid-answer.

The stand-ins are written from what is documented of SGLang, trtllm-serve and OpenAI's completions.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select

from cli.stack.servers.valkey import EmbeddedValkey
from jobs.database import transaction
from jobs.models import DEFAULT_TENANT, Engine
from jobs.settings import DatabaseSettings, EngineSettings
from stand_in_engine import Kind, StandIn, standing_in
from support import eventually, new_tenant
from worker_suite import *  # noqa: F403  all of its tests
from worker_suite import Fed, settings_of_worker
from worker_support import Queue, WorkerProcess, running_worker

LONG = 200
# A checkpoint is taken a third of a second after the first token: before the answer waits to be cut.
CONDUCT: dict[str, Any] = {"pace": 0.01, "waits_at": 3 * LONG // 4}


def fed_by(stand_in: StandIn, database: DatabaseSettings, valkey: EmbeddedValkey) -> Fed:
    engine = EngineSettings.model_validate(
        {
            "url": stand_in.url,
            "kind": "openai" if stand_in.kind == "openai" else "auto",
            "max_batch_size": 4,
            "max_blocks": 256,
            "tokens_per_block": 32,
        }
    )
    return Fed(
        settings_of_worker(database, valkey.url, engine),
        prompt="Write about rivers.",
        long=LONG,
        is_idle=lambda: stand_in.running == 0,
        server=stand_in,
        known=[*range(1000, 1000 + LONG)],
    )


@pytest.fixture(params=["sglang", "trtllm-serve"])
def fed(
    request: pytest.FixtureRequest, database_settings: DatabaseSettings, valkey: EmbeddedValkey
) -> Iterator[Fed]:
    with standing_in(request.param, **CONDUCT) as stand_in:
        yield fed_by(stand_in, database_settings, valkey)


@pytest.fixture
def told(database_settings: DatabaseSettings, valkey: EmbeddedValkey) -> Iterator[Fed]:
    """An endpoint of text alone."""
    with standing_in("openai", **CONDUCT) as stand_in:
        yield fed_by(stand_in, database_settings, valkey)


@pytest.mark.parametrize(("kind", "field"), [("vllm", "cache_salt"), ("sglang", "extra_key")])
def test_every_worker_sends_a_tenant_s_own_salt_to_an_engine_that_takes_one(
    queue: Queue, database_settings: DatabaseSettings, valkey: EmbeddedValkey, kind: Kind, field: str
) -> None:
    with transaction(queue.sessions) as session:
        tenants = (DEFAULT_TENANT, new_tenant(session))
    with standing_in(kind) as stand_in:
        settings = fed_by(stand_in, database_settings, valkey).settings
        for _ in range(2):
            with running_worker(settings, queue.tokenizer):
                for tenant_id in tenants:
                    queue.ended(queue.submit("Write about rivers.", max_tokens=4, tenant_id=tenant_id))
        salts = [body[field] for _, body in stand_in.bodies]
    assert salts == salts[:2] * 2
    assert len(set(salts)) == 2
    assert all(len(salt) == 64 and tenant_id.hex not in salt for salt in salts for tenant_id in tenants)


def test_an_engine_that_streams_gets_jobs_while_it_answers_nothing_else(
    queue: Queue, database_settings: DatabaseSettings, valkey: EmbeddedValkey
) -> None:
    """One that serves a thousand streams may be late with its health for seconds."""
    with standing_in("vllm", pace=0.1) as stand_in:
        settings = fed_by(stand_in, database_settings, valkey).settings
        with running_worker(settings, queue.tokenizer):
            first = queue.submit("Write about rivers.", max_tokens=400)
            queue.streaming(first)
            stand_in.is_late = True
            eventually(lambda: stand_in.num_late >= 2)  # the first was given up
            second = queue.submit("Write about lakes.", max_tokens=4)
            queue.ended(second)
            assert queue.job(first).state == "running"
            stand_in.is_late = False
            queue.ended(first)


def test_an_engine_late_with_its_gauges_keeps_the_blocks_of_its_other_users(
    queue: Queue, database_settings: DatabaseSettings, valkey: EmbeddedValkey
) -> None:
    def engine() -> Engine:
        with transaction(queue.sessions) as session:
            return session.scalars(select(Engine)).one()

    with standing_in("vllm", pace=0.1) as stand_in:  # it shows more used blocks than the job reserves
        settings = fed_by(stand_in, database_settings, valkey).settings
        with running_worker(settings, queue.tokenizer):
            job = queue.submit("Write about rivers.", max_tokens=400)
            queue.streaming(job)
            eventually(lambda: engine().spare_blocks is not None)
            spare = engine().spare_blocks
            stand_in.is_late = True
            eventually(lambda: stand_in.num_late >= 2)  # its health, and then its gauges
            late = engine()
            eventually(lambda: engine().seen_at > late.seen_at)
            assert engine().spare_blocks == spare
            stand_in.is_late = False


def ends_whole(queue: Queue, job_id: UUID) -> None:
    """It began anew: nothing of the first run is in its answer."""
    ended, result = queue.ended(job_id), queue.result(job_id)
    assert (ended.state, ended.num_rescues, ended.attempt) == ("completed", 1, 0)
    assert result is not None
    assert result.output == "".join(f"{chr(97 + place % 26)} " for place in range(LONG))


def test_a_killed_worker_s_text_begins_anew_and_is_whole(queue: Queue, told: Fed, tmp_path: Path) -> None:
    job_id = queue.submit(told.prompt, max_tokens=told.long)
    first = WorkerProcess("inference", told.settings, tmp_path / "first.log")
    try:
        queue.streaming(job_id)
    finally:
        first.end()
    eventually(told.is_idle)
    queue.rescue()
    with running_worker(told.settings, queue.tokenizer):
        ends_whole(queue, job_id)


def test_a_text_begins_anew_when_its_engine_is_killed_and_comes_back(queue: Queue, told: Fed) -> None:
    assert told.server is not None
    with running_worker(told.settings, queue.tokenizer):
        job_id = queue.submit(told.prompt, max_tokens=told.long)
        queue.streaming(job_id)
        told.server.kill()
        queue.when(job_id, lambda job: job.state == "queued")
        told.server.start()
        ends_whole(queue, job_id)
