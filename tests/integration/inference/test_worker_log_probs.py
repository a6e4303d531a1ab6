"""Log probabilities through workers: whole over segments and kills, kept and deleted with results."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import text

from cli.stack.servers.valkey import EmbeddedValkey
from jobs import deletion, lifecycle
from jobs.answers import log_probs
from jobs.answers.log_probs import LogProbs
from jobs.checkpoints import Output, columns_of
from jobs.database import transaction
from jobs.models import DEFAULT_TENANT, Checkpoint
from jobs.settings import DatabaseSettings, EngineSettings, Settings
from jobs.sharing import Sharing
from stand_in_engine import StandIn, log_prob_of, standing_in
from support import eventually
from worker_suite import settings_of_worker
from worker_support import Queue, WorkerProcess, running_worker

LONG = 200
SCORED: dict[str, Any] = {"logprobs": 2}


@pytest.fixture(params=["vllm", "sglang"])
def served(request: pytest.FixtureRequest) -> Iterator[StandIn]:
    with standing_in(request.param, repeats=False) as stand_in:
        yield stand_in


@pytest.fixture
def settings(served: StandIn, database_settings: DatabaseSettings, valkey: EmbeddedValkey) -> Settings:
    sizes = {"max_batch_size": 4, "max_blocks": 256, "tokens_per_block": 32}
    fed = EngineSettings.model_validate({"url": served.url} | sizes)
    return settings_of_worker(database_settings, valkey.url, fed)


def scored_of(queue: Queue, job_id: UUID) -> LogProbs:
    result = queue.result(job_id)
    assert result is not None
    assert result.log_probs is not None
    return log_probs.read(result.log_probs)


def assert_whole(found: LogProbs, num_tokens: int) -> None:
    assert [*found.ids] == [*range(1000, 1000 + num_tokens)]
    assert [each.log_prob for each in found.scores] == [log_prob_of(each) for each in found.ids]
    assert all([*each.top] == [(7, -0.5), (8, -0.75)] for each in found.scores)


@pytest.mark.parametrize("served", ["vllm"], indirect=True)  # the other one's context is too short
def test_they_are_whole_over_segments(queue: Queue, served: StandIn, settings: Settings) -> None:
    with running_worker(settings, queue.tokenizer):
        job_id = queue.submit("Write.", max_tokens=3000, sampling=SCORED)
        assert queue.ended(job_id).state == "completed"
    assert len([path for path, _ in served.bodies if path != "/abort_request"]) > 1, "it had segments"
    assert_whole(scored_of(queue, job_id), 3000)


def test_they_are_whole_after_a_worker_was_killed(
    queue: Queue, served: StandIn, settings: Settings, tmp_path: Path
) -> None:
    served.pace, served.waits_at = 0.01, 3 * LONG // 4
    job_id = queue.submit("Write.", max_tokens=LONG, sampling=SCORED)
    first = WorkerProcess("inference", settings, tmp_path / "first.log")
    try:
        eventually(lambda: len(queue.saved_ids(job_id)) > LONG // 8)
    finally:
        first.end()
    kept = len(queue.saved_ids(job_id))
    eventually(lambda: served.running == 0)
    queue.rescue()
    with running_worker(settings, queue.tokenizer):
        ended = queue.ended(job_id)
    assert (ended.state, ended.num_rescues) == ("completed", 1)
    assert served.num_given(served.asked()) >= kept, "it went on after what was saved"
    assert_whole(scored_of(queue, job_id), LONG)


def test_a_partial_result_has_those_of_its_checkpoint(
    queue: Queue, served: StandIn, settings: Settings
) -> None:
    served.pace, served.waits_at = 0.01, LONG
    with running_worker(settings, queue.tokenizer):
        job_id = queue.submit("Write.", max_tokens=2 * LONG, sampling=SCORED)
        queue.streaming(job_id)
        with transaction(queue.sessions) as session:
            lifecycle.cancel(session, job_id, tenant_id=DEFAULT_TENANT)
        ended = queue.ended(job_id)
    assert ended.state == "cancelled"
    assert 0 < ended.completion_tokens <= LONG
    assert_whole(scored_of(queue, job_id), ended.completion_tokens)


def test_equal_jobs_share_them_and_only_jobs_that_ask_for_the_same(
    queue: Queue, served: StandIn, settings: Settings
) -> None:
    served.pace = 0.005
    shared: dict[str, Any] = {"max_tokens": 40, "sharing": Sharing()}
    with running_worker(settings, queue.tokenizer):
        first, twin = (queue.submit("Write.", sampling=SCORED, **shared) for _ in range(2))
        other = queue.submit("Write.", sampling={}, **shared)
        for job_id in (first, twin, other):
            assert queue.ended(job_id).state == "completed"
    assert_whole(scored_of(queue, first), 40)
    assert_whole(scored_of(queue, twin), 40)
    assert queue.job(twin).engine_name is None, "it took the other's answer"
    result = queue.result(other)
    assert result is not None
    assert result.log_probs is None


def stored_bytes(queue: Queue) -> int:
    """What the triggers have counted of results since the schema was made."""
    with transaction(queue.sessions) as session:
        query = text("SELECT coalesce(sum(num_bytes), 0) FROM stored_notes")
        totals = text("SELECT coalesce(sum(num_bytes), 0) FROM stored_totals")
        return int(session.scalar(query) or 0) + int(session.scalar(totals) or 0)


def test_they_count_as_stored_bytes_and_go_with_the_job(
    queue: Queue, served: StandIn, settings: Settings
) -> None:
    assert served.bodies == []
    before = stored_bytes(queue)
    with running_worker(settings, queue.tokenizer):
        job_id = queue.submit("Write.", max_tokens=LONG, sampling=SCORED)
        queue.ended(job_id)
    result, job = queue.result(job_id), queue.job(job_id)
    assert result is not None
    assert result.log_probs is not None
    with transaction(queue.sessions) as session:
        query = text(
            "SELECT octet_length(body) + coalesce(octet_length(token_ids), 0)"
            " + coalesce(octet_length(prefixes), 0) FROM texts WHERE id = :id"
        )
        prompt = session.scalar(query, {"id": job.text_id})
    assert prompt is not None
    own = len(result.output.encode()) + len(result.output_ids) + len(result.log_probs)
    assert stored_bytes(queue) - before == prompt + own
    with transaction(queue.sessions) as session:
        assert deletion.remove(session, job_id, tenant_id=DEFAULT_TENANT)
    assert queue.result(job_id) is None
    assert stored_bytes(queue) == before


def test_a_checkpoint_of_the_release_before_is_started_over(
    queue: Queue, served: StandIn, settings: Settings
) -> None:
    job_id = queue.submit("Write.", max_tokens=20, sampling=SCORED)
    saved = Output("", [1000, 1001], 2, fingerprint=queue.tokenizer.fingerprint)
    with transaction(queue.sessions) as session:
        session.add(Checkpoint(job_id=job_id, **columns_of(saved)))
        session.execute(text("UPDATE jobs SET completion_tokens = 2"))
    with running_worker(settings, queue.tokenizer):
        assert queue.ended(job_id).state == "completed"
    assert served.num_given(served.asked()) == 0
    assert_whole(scored_of(queue, job_id), 20)
