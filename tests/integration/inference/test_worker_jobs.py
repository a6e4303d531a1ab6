"""Jobs on a real engine: how they end, what they say and what they cost."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session, sessionmaker

from cli.stack.servers.valkey import EmbeddedValkey
from jobs import lifecycle
from jobs.database import transaction
from jobs.models import DEFAULT_TENANT, Engine, Job, PromptText, WebhookDispatch, WebhookEvent
from jobs.prompts.tokenizer import Tokenizer, pack_ids, unpack_ids
from jobs.settings import DatabaseSettings, Settings
from local_engine import RunningEngine
from support import eventually
from worker.inference.worker import InferenceWorker
from worker_support import ENGINE, SAID, Queue, running_worker, settings_for


@pytest.fixture
def settings(
    database_settings: DatabaseSettings, valkey: EmbeddedValkey, synthetic: RunningEngine
) -> Settings:
    return settings_for(database_settings, valkey.url, synthetic)


@pytest.fixture
def worker(
    sessions: sessionmaker[Session],  # noqa: ARG001  # an empty database
    settings: Settings,
    tokenizer: Tokenizer,
) -> Iterator[InferenceWorker]:
    with running_worker(settings, tokenizer) as running:
        yield running


def idle(engine: RunningEngine) -> bool:
    gauges = engine.gauges()
    return gauges["active"] == gauges["used"] == 0


@pytest.mark.usefixtures("worker")
def test_an_end_token_finishes_with_stop(queue: Queue) -> None:
    job = queue.ended(queue.submit("Say something. [[tokens=12]]", max_tokens=64))
    assert (job.state, job.finish_reason, job.completion_tokens) == ("completed", "stop", 12)


@pytest.mark.usefixtures("worker")
def test_questions_about_a_document_start_once_one_of_them_has_read_it(queue: Queue) -> None:
    documents = [f"Of {subject}: " + f"{subject} are many. " * 1200 for subject in ("apples", "rivers")]
    questions = [
        [queue.submit(f"{document} Question {number}?", max_tokens=8) for document in documents]
        for number in range(4)
    ]
    for job_ids in zip(*questions, strict=True):
        jobs = [queue.ended(each) for each in job_ids]
        assert {job.state for job in jobs} == {"completed"}
        assert len({job.family for job in jobs} - {None}) == 1
        reader, *followers = sorted(jobs, key=lambda job: job.started_at or job.created_at)
        assert reader.cached_tokens == 0
        for job in followers:
            assert job.prompt_tokens is not None
            assert job.cached_tokens is not None
            assert job.prompt_tokens - 2 * 64 < job.cached_tokens < job.prompt_tokens
            assert job.cached_tokens % 64 == 0
        assert reader.first_token_at is not None
        assert all(job.started_at and job.started_at >= reader.first_token_at for job in followers)


@pytest.mark.usefixtures("worker")
def test_max_tokens_finishes_with_length(queue: Queue) -> None:
    job = queue.ended(queue.submit("Say something.", max_tokens=37))
    assert (job.state, job.finish_reason, job.completion_tokens) == ("completed", "length", 37)


@pytest.mark.usefixtures("worker")
def test_an_end_token_right_at_max_tokens_is_a_length(queue: Queue) -> None:
    job = queue.ended(queue.submit("Say something. [[tokens=16]]", max_tokens=16))
    assert (job.finish_reason, job.completion_tokens) == ("length", 16)


@pytest.mark.usefixtures("worker")
def test_the_output_is_the_text_of_the_generated_ids(queue: Queue, tokenizer: Tokenizer) -> None:
    job_id = queue.submit("Say something.", max_tokens=100)
    queue.ended(job_id)
    result = queue.result(job_id)
    assert result is not None
    ids = unpack_ids(result.output_ids)
    assert len(ids) == 100
    assert result.output == tokenizer.decode(ids)
    assert result.output in SAID * 6


@pytest.mark.usefixtures("worker")
def test_a_stop_string_across_chunks_ends_the_answer_before_it(
    queue: Queue, synthetic: RunningEngine
) -> None:
    stop = "every word of this line is as good as"
    job_id = queue.submit("Say something.", max_tokens=4000, sampling={"stop": [stop, "never said"]})
    job = queue.ended(job_id)
    result = queue.result(job_id)
    assert (job.state, job.finish_reason) == ("completed", "stop")
    assert result is not None
    assert stop not in result.output
    assert (result.output + stop) in SAID * 3
    assert job.completion_tokens < 60
    eventually(lambda: idle(synthetic))


@pytest.mark.usefixtures("worker")
def test_prompt_tokens_are_what_the_engine_is_sent(queue: Queue, tokenizer: Tokenizer) -> None:
    text = "Naïve café 希望 <|eot_id|><|start_header_id|>system"
    job_id = queue.submit(text, max_tokens=4)
    job = queue.ended(job_id)
    with queue.sessions() as session:
        stored = session.get_one(PromptText, job.text_id)
    assert stored.token_ids is not None
    assert job.prompt_tokens == len(unpack_ids(stored.token_ids)) == stored.num_tokens
    assert text in tokenizer.decode(unpack_ids(stored.token_ids))


@pytest.mark.usefixtures("worker")
def test_many_jobs_share_the_engine_and_leave_nothing_reserved(
    queue: Queue, synthetic: RunningEngine
) -> None:
    job_ids = [queue.submit(f"Number {number}. [[tokens={5 + number}]]") for number in range(20)]
    assert [queue.ended(job_id).completion_tokens for job_id in job_ids] == list(range(5, 25))
    eventually(lambda: not queue.reservations())
    eventually(lambda: idle(synthetic))


@pytest.mark.usefixtures("worker")
def test_a_job_knows_when_its_first_token_came(queue: Queue) -> None:
    job = queue.ended(queue.submit("Say something.", max_tokens=3))
    assert job.started_at is not None
    assert job.first_token_at is not None
    assert job.finalized_at is not None
    assert job.created_at <= job.started_at <= job.first_token_at <= job.finalized_at


@pytest.mark.usefixtures("worker")
def test_a_cancelled_job_keeps_what_it_has_said(queue: Queue, synthetic: RunningEngine) -> None:
    job_id = queue.submit("Say something.", max_tokens=100_000)
    queue.streaming(job_id)
    with transaction(queue.sessions) as session:
        lifecycle.cancel(session, job_id, tenant_id=DEFAULT_TENANT)
    job = queue.ended(job_id)
    result = queue.result(job_id)
    assert (job.state, job.finish_reason) == ("cancelled", None)
    assert result is not None
    assert len(unpack_ids(result.output_ids)) == job.completion_tokens > 0
    assert result.output in SAID * 10_000
    eventually(lambda: idle(synthetic) and not queue.reservations())


@pytest.mark.usefixtures("worker")
def test_a_job_is_cancelled_while_its_prompt_is_read(queue: Queue, synthetic: RunningEngine) -> None:
    job_id = queue.submit("word " * 90_000, max_tokens=500)
    eventually(lambda: synthetic.gauges()["context"] == 1)
    with transaction(queue.sessions) as session:
        lifecycle.cancel(session, job_id, tenant_id=DEFAULT_TENANT)
    job = queue.ended(job_id)
    assert (job.state, job.completion_tokens, job.first_token_at) == ("cancelled", 0, None)
    eventually(lambda: idle(synthetic) and not queue.reservations())


@pytest.mark.usefixtures("worker")
def test_a_running_job_expires_with_its_window(queue: Queue) -> None:
    job_id = queue.submit("Say something.", max_tokens=100_000, window=timedelta(hours=1))
    queue.streaming(job_id)
    with transaction(queue.sessions) as session:
        lifecycle.expire(session, now=datetime.now(UTC) + timedelta(hours=2))
    assert queue.ended(job_id).state == "expired"


@pytest.mark.usefixtures("worker")
def test_the_end_of_a_job_is_an_event_in_the_same_moment(queue: Queue) -> None:
    job_id = queue.submit("Say something.", max_tokens=3, webhook_url="https://example.com/hook")
    queue.ended(job_id)
    with queue.sessions() as session:
        (event,) = session.scalars(select(WebhookEvent).where(WebhookEvent.job_id == job_id))
        (dispatch,) = session.scalars(select(WebhookDispatch).where(WebhookDispatch.event_id == event.id))
    assert (event.type, dispatch.state) == ("job.completed", "pending")


def test_ids_of_another_tokenizer_are_counted_again(
    queue: Queue, settings: Settings, tokenizer: Tokenizer
) -> None:
    job_id = queue.submit("Say something. [[tokens=7]]")
    right = queue.job(job_id).prompt_tokens
    with transaction(queue.sessions) as session:
        session.execute(
            update(PromptText).values(fingerprint="another", token_ids=pack_ids([1, 2, 3]), num_tokens=3)
        )
        session.execute(update(Job).values(prompt_tokens=3))
    with running_worker(settings, tokenizer):
        job = queue.ended(job_id)
    assert (job.state, job.prompt_tokens, job.completion_tokens, job.attempt) == ("completed", right, 7, 0)


@pytest.mark.usefixtures("worker")
def test_the_engine_registers_with_what_the_live_server_says(queue: Queue) -> None:
    with queue.sessions() as session:
        engine = session.get_one(Engine, ENGINE)
    assert (engine.max_batch_size, engine.max_blocks, engine.tokens_per_block) == (4, 2048, 64)
    assert (engine.max_input_len, engine.max_seq_len, engine.paused_reason) == (96_000, 131_072, None)
