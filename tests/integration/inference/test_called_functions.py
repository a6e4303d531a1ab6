"""Jobs whose answers call functions, over a stand-in that says what it is told to, token by token."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest

from cli.stack.servers.valkey import EmbeddedValkey
from jobs.models import Result
from jobs.prompts.guides import Guide, GuideKind
from jobs.prompts.store import NewText
from jobs.prompts.tools.calls import MadeCall, read_calls
from jobs.prompts.tools.forms import AnswerForm, CallForm
from jobs.settings import DatabaseSettings, EngineSettings, Settings
from stand_in_engine import StandIn, standing_in
from worker_suite import settings_of_worker
from worker_support import Queue, running_worker

ARGUMENTS = '{"city": "Oslo", "why": "</s> stop"}'
CALL = f'{{"name": "get_weather", "parameters": {ARGUMENTS}}}'
TWO = f'{CALL}; {{"name": "clock", "parameters": {{}}}}'
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
NARROW = SCHEMA | {"additionalProperties": False}
AUTO = AnswerForm(calls=CallForm(("get_weather", "clock"), {}))


@pytest.fixture
def settings(database_settings: DatabaseSettings, valkey: EmbeddedValkey) -> Settings:
    engine = {"url": "http://127.0.0.1:1", "max_batch_size": 4, "max_blocks": 256, "tokens_per_block": 32}
    return settings_of_worker(database_settings, valkey.url, EngineSettings.model_validate(engine))


@contextmanager
def answering(queue: Queue, settings: Settings, said: str, **conduct: Any) -> Iterator[StandIn]:  # noqa: ANN401
    ids = queue.tokenizer.encode_text(said).tolist()
    with standing_in("sglang", says=ids, repeats=False, **conduct) as stand_in:
        engine = settings.engine.model_copy(update={"url": stand_in.url})
        with running_worker(settings.model_copy(update={"engine": engine}), queue.tokenizer):
            yield stand_in


def submit(queue: Queue, form: AnswerForm, **fields: Any) -> UUID:  # noqa: ANN401  # of a job
    written = form.written()
    assert written is not None
    is_whole = form.guide is not None
    found: UUID = queue.submit("Who?", guide=NewText(written), is_whole=is_whole, **fields)
    return found


def result_of(queue: Queue, job_id: UUID) -> Result:
    found = queue.result(job_id)
    assert found is not None
    return found


def test_a_call_is_kept_apart_and_is_why_the_answer_ended(queue: Queue, settings: Settings) -> None:
    with answering(queue, settings, TWO):
        job_id = submit(queue, AUTO)
        ended = queue.ended(job_id)
    assert (ended.state, ended.finish_reason) == ("completed", "tool_calls")
    result = result_of(queue, job_id)
    assert (result.output, read_calls(result.tool_calls)) == (
        "",
        (MadeCall(0, "get_weather", ARGUMENTS), MadeCall(0, "clock", "{}")),
    )


def test_an_answer_without_a_call_stays_text(queue: Queue, settings: Settings) -> None:
    with answering(queue, settings, 'It is {"name": "clock"}.'):
        job_id = submit(queue, AUTO)
        ended = queue.ended(job_id)
    result = result_of(queue, job_id)
    assert (ended.finish_reason, result.output) == ("stop", 'It is {"name": "clock"}.')
    assert result.tool_calls is None


def test_a_cut_call_has_what_came_of_it(queue: Queue, settings: Settings) -> None:
    num_tokens = len(queue.tokenizer.encode_text(CALL)) - 3
    with answering(queue, settings, CALL):
        job_id = submit(queue, AUTO, max_tokens=num_tokens)
        ended = queue.ended(job_id)
    assert (ended.state, ended.finish_reason) == ("completed", "length")
    [call] = read_calls(result_of(queue, job_id).tool_calls)
    assert ARGUMENTS.startswith(call.arguments)
    assert call.arguments


def test_a_stop_string_ends_text_and_no_arguments(queue: Queue, settings: Settings) -> None:
    with answering(queue, settings, CALL) as stand_in:
        job_id = submit(queue, AUTO, sampling={"stop": ["stop"]})
        ended = queue.ended(job_id)
    assert ended.finish_reason == "tool_calls"
    assert read_calls(result_of(queue, job_id).tool_calls)[0].arguments == ARGUMENTS
    [asked] = [body["sampling_params"] for path, body in stand_in.bodies if path == "/generate"]
    assert "stop" not in asked, "the engine would end the call"
    with answering(queue, settings, f"Well, stop. {CALL}"):
        job_id = submit(queue, AUTO, sampling={"stop": ["stop"]})
        ended = queue.ended(job_id)
    assert (ended.finish_reason, result_of(queue, job_id).output) == ("stop", "Well, ")


def test_a_call_goes_on_where_another_engine_left_it(queue: Queue, settings: Settings) -> None:
    place = len(queue.tokenizer.encode_text(CALL)) // 2
    with answering(queue, settings, CALL, pace=0.01, waits_at=place) as stand_in:
        job_id = submit(queue, AUTO)
        queue.when(job_id, lambda _: len(queue.saved_ids(job_id)) == place)
        stand_in.kill()
        queue.when(job_id, lambda job: job.state == "queued")
        stand_in.waits_at = None
        stand_in.start()
        ended = queue.ended(job_id)
    assert (ended.state, ended.finish_reason) == ("completed", "tool_calls")
    assert read_calls(result_of(queue, job_id).tool_calls) == (MadeCall(0, "get_weather", ARGUMENTS),)
    first, *others = [body for path, body in stand_in.bodies if path == "/generate"]
    assert any(len(body["input_ids"]) == len(first["input_ids"]) + place for body in others)


def test_one_call_at_most_ends_the_answer(queue: Queue, settings: Settings) -> None:
    form = AnswerForm(calls=CallForm(("get_weather", "clock"), {}, is_parallel=False))
    with answering(queue, settings, TWO):
        job_id = submit(queue, form)
        ended = queue.ended(job_id)
    assert (ended.state, ended.finish_reason) == ("completed", "tool_calls")
    assert [each.name for each in read_calls(result_of(queue, job_id).tool_calls)] == ["get_weather"]


def test_arguments_of_a_strict_function_are_checked(queue: Queue, settings: Settings) -> None:
    def form(schema: dict[str, Any]) -> AnswerForm:
        return AnswerForm(calls=CallForm(("get_weather",), {"get_weather": json.dumps(schema)}))

    with answering(queue, settings, CALL):
        right, wrong = submit(queue, form(SCHEMA)), submit(queue, form(NARROW))
        assert queue.ended(right).state == "completed"
        failed = queue.ended(wrong)
    assert failed.error is not None
    assert (failed.state, failed.error["code"]) == ("failed", "invalid_output")
    assert "get_weather" in str(failed.error["message"])
    assert "why" in str(failed.error["message"])


def test_a_required_call_is_guided_and_an_answer_without_one_is_wrong(
    queue: Queue, settings: Settings
) -> None:
    guide = Guide(GuideKind.JSON, json.dumps({"type": "object"}))
    form = AnswerForm(guide, CallForm(("clock",), {}, is_required=True, is_json=True))
    with answering(queue, settings, '{"name": "clock", "arguments": {}}') as stand_in:
        job_id = submit(queue, form)
        ended = queue.ended(job_id)
        bodies = [body["sampling_params"] for path, body in stand_in.bodies if path == "/generate"]
    assert (ended.state, ended.finish_reason) == ("completed", "tool_calls")
    assert [json.loads(body["json_schema"]) for body in bodies] == [{"type": "object"}]
    with answering(queue, settings, '{"city": "Oslo"}'):
        failed = queue.ended(submit(queue, form))
    assert failed.error is not None
    assert "calls no function" in str(failed.error["message"])
