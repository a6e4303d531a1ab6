"""Jobs whose answers must have a form, over a stand-in that is asked for it and says what it likes."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from cli.stack.servers.valkey import EmbeddedValkey
from jobs import deletion, lifecycle
from jobs.database import transaction
from jobs.models import DEFAULT_TENANT, Job, PromptText
from jobs.prompts.guides import Guide, GuideKind
from jobs.prompts.store import NewText
from jobs.responses.objects import RESPONSE_TASK, WAITED_TASK
from jobs.settings import DatabaseSettings, EngineSettings, Settings
from jobs.states import Lane
from stand_in_engine import StandIn, standing_in
from worker_suite import settings_of_worker
from worker_support import Queue, running_worker

SCHEMA = {"type": "object", "required": ["name"]}
BY_SCHEMA = Guide(GuideKind.JSON, json.dumps(SCHEMA))
LONG = 200


def settings_over(stand_in: StandIn, database: DatabaseSettings, valkey: EmbeddedValkey) -> Settings:
    engine = {"url": stand_in.url, "max_batch_size": 4, "max_blocks": 256, "tokens_per_block": 32}
    return settings_of_worker(database, valkey.url, EngineSettings.model_validate(engine))


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    """It ends each answer after five tokens, as if by an end token."""
    with standing_in("sglang", stops_after=5) as found:
        yield found


@pytest.fixture
def settings(stand_in: StandIn, database_settings: DatabaseSettings, valkey: EmbeddedValkey) -> Settings:
    return settings_over(stand_in, database_settings, valkey)


def submit(queue: Queue, guide: Guide, **fields: Any) -> Any:  # noqa: ANN401  # of a job
    return queue.submit("Who?", guide=NewText(guide.written()), is_whole=True, **fields)


def asked(stand_in: StandIn) -> list[dict[str, Any]]:
    return [body["sampling_params"] for path, body in stand_in.bodies if path == "/generate"]


def said(queue: Queue) -> str:
    return queue.tokenizer.decode([*range(1000, 1005)])


def test_an_answer_without_its_form_is_tried_again_and_then_fails_its_job(
    queue: Queue, settings: Settings, stand_in: StandIn
) -> None:
    with running_worker(settings, queue.tokenizer):
        job_id = submit(queue, BY_SCHEMA)
        ended = queue.ended(job_id)
    assert (ended.state, ended.attempt) == ("failed", settings.jobs.max_attempts)
    assert ended.error is not None
    assert ended.error["code"] == "invalid_output"
    assert "JSON" in str(ended.error["message"])
    bodies = asked(stand_in)
    assert [json.loads(body["json_schema"]) for body in bodies] == [SCHEMA] * settings.jobs.max_attempts
    result = queue.result(job_id)
    assert result is not None
    assert result.output == said(queue), "what it said is kept, as of every failed job"


def test_an_answer_with_its_form_completes_its_job(
    queue: Queue, settings: Settings, stand_in: StandIn
) -> None:
    with running_worker(settings, queue.tokenizer):
        job_id = submit(queue, Guide(GuideKind.CHOICE, json.dumps(["other", said(queue)])))
        ended = queue.ended(job_id)
    assert (ended.state, ended.finish_reason) == ("completed", "stop")
    assert asked(stand_in)[0]["ebnf"].startswith('root ::= "other" | "')


def test_jobs_share_the_row_of_their_form_which_goes_with_the_last_of_them(queue: Queue) -> None:
    jobs = [queue.job(submit(queue, BY_SCHEMA)) for _ in range(2)]
    other = queue.job(submit(queue, Guide(GuideKind.REGEX, "a+")))
    [guide_id] = {job.guide_id for job in jobs}
    assert guide_id not in {None, other.guide_id, *(job.text_id for job in jobs)}
    for job, is_left in zip(jobs, (True, False), strict=True):
        with transaction(queue.sessions) as session:
            lifecycle.cancel(session, job.id, tenant_id=DEFAULT_TENANT)
            assert deletion.remove(session, job.id, tenant_id=DEFAULT_TENANT)
        with queue.sessions() as session:
            assert (session.get(PromptText, guide_id) is not None) == is_left


def test_an_answer_that_is_cut_is_complete_as_far_as_it_goes(queue: Queue, settings: Settings) -> None:
    with running_worker(settings, queue.tokenizer):
        ended = queue.ended(submit(queue, BY_SCHEMA, max_tokens=3))
    assert (ended.state, ended.finish_reason, ended.attempt) == ("completed", "length", 0)


def test_a_streamed_answer_without_its_form_is_not_followed_by_another(
    queue: Queue, settings: Settings, stand_in: StandIn
) -> None:
    with running_worker(settings, queue.tokenizer):
        ended = queue.ended(submit(queue, BY_SCHEMA, lane=Lane.INTERACTIVE))
    assert ended.error is not None
    assert (ended.state, ended.error["code"], len(asked(stand_in))) == ("failed", "invalid_output", 1)


@pytest.mark.parametrize(
    ("lane", "task", "num_tries"),
    [
        (Lane.INTERACTIVE, RESPONSE_TASK, 3),  # in the background, so nobody need have seen it
        (Lane.BATCH, WAITED_TASK, 1),  # of the tier flex, streamed perhaps
    ],
)
def test_whether_another_answer_is_tried_depends_on_who_waits_not_on_the_lane(
    queue: Queue, settings: Settings, stand_in: StandIn, lane: Lane, task: str, num_tries: int
) -> None:
    assert settings.jobs.max_attempts == 3
    with running_worker(settings, queue.tokenizer):
        ended = queue.ended(submit(queue, BY_SCHEMA, lane=lane, task=task))
    assert ended.error is not None
    assert (ended.state, ended.error["code"], len(asked(stand_in))) == ("failed", "invalid_output", num_tries)


def test_what_is_asked_in_words_is_not_guided_and_drawn_anew_each_time(
    queue: Queue, settings: Settings, stand_in: StandIn
) -> None:
    with running_worker(settings, queue.tokenizer):
        ended = queue.ended(submit(queue, replace(BY_SCHEMA, in_words=True)))
    assert ended.state == "failed"
    first, *others = asked(stand_in)
    assert not any("json_schema" in body for body in (first, *others))
    assert first["temperature"] == 0
    assert all(body["temperature"] > 0 for body in others)
    assert len({body["sampling_seed"] for body in others}) == len(others) > 0


def test_a_guided_answer_is_reserved_whole_and_begins_anew_when_its_engine_is_lost(
    queue: Queue, database_settings: DatabaseSettings, valkey: EmbeddedValkey
) -> None:
    with standing_in("sglang", pace=0.01, waits_at=LONG // 2) as stand_in:
        settings = settings_over(stand_in, database_settings, valkey)
        with running_worker(settings, queue.tokenizer):
            job_id = submit(queue, BY_SCHEMA, max_tokens=LONG)
            queue.when(job_id, lambda job: job.completion_tokens == LONG // 2)
            assert queue.saved_ids(job_id) == [], "no other request could go on in its grammar"
            stand_in.kill()
            queue.when(job_id, lambda job: job.state == "queued")
            stand_in.start()
            ended: Job = queue.ended(job_id)
        bodies = [body for path, body in stand_in.bodies if path == "/generate"]
    assert (ended.state, ended.completion_tokens) == ("completed", LONG)
    assert {body["sampling_params"]["max_new_tokens"] for body in bodies} == {LONG}
    assert len({tuple(body["input_ids"]) for body in bodies}) == 1
