"""What a request for a response may say, and how its errors name its own fields."""

import json
from typing import Any

import pytest
from openai.types.responses import Response

from jobs.errors import InvalidRequestError, UnsupportedParameterError
from jobs.prompts import messages
from jobs.prompts.guides import GuideKind
from jobs.responses import requests
from jobs.responses.requests import AskedResponse

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def asked(**fields: Any) -> AskedResponse:  # noqa: ANN401  # JSON
    return requests.validate({"model": "m", "input": "Hello"} | fields)


def refused(**fields: Any) -> InvalidRequestError:  # noqa: ANN401  # JSON
    with pytest.raises(InvalidRequestError) as raised:
        asked(**fields)
    return raised.value


def turns_of(found: AskedResponse) -> list[tuple[str, str]]:
    conversation = messages.parse(found.generation.canonical)
    return [(message.role, message.content) for message in conversation.messages]


def test_a_text_is_the_message_of_a_user_after_the_instructions() -> None:
    assert turns_of(asked(instructions="Be brief.")) == [("system", "Be brief."), ("user", "Hello")]


def test_items_are_turns_and_earlier_thinking_is_not_seen_again() -> None:
    items = [
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hel"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text"}]},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Yes", "annotations": [], "logprobs": []}],
        },
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}],
        },
    ]
    found = asked(input=items)
    assert turns_of(found) == [("system", "Be brief."), ("user", "Hel"), ("assistant", "Yes"), ("user", "ab")]
    assert [item["type"] for item in found.items] == ["message", "message", "reasoning", "message", "message"]
    assert found.items[4]["content"] == [
        {"type": "input_text", "text": "a"},
        {"type": "input_text", "text": "b"},
    ]


def test_an_item_of_an_earlier_response_of_ours_can_be_sent_back() -> None:
    output = [
        {
            "id": "rs_1",
            "type": "reasoning",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "Hm"}],
            "encrypted_content": None,
            "status": "completed",
        },
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Yes", "annotations": [], "logprobs": []}],
        },
    ]
    assert turns_of(asked(input=[*output, {"role": "user", "content": "Why?"}])) == [
        ("assistant", "Yes"),
        ("user", "Why?"),
    ]


@pytest.mark.parametrize(
    "form", [{"type": "json_object"}, {"type": "json_schema", "name": "x", "schema": SCHEMA}]
)
def test_a_form_guides_the_answer_and_is_repeated(form: dict[str, Any]) -> None:
    found = asked(text={"format": form})
    assert found.generation.form.guide is not None
    assert found.generation.form.guide.kind is GuideKind.JSON
    assert found.repeated["text"] == {"format": form}


def test_parameters_reach_the_engine() -> None:
    found = asked(temperature=0.5, top_p=0.9, max_output_tokens=7, seed=3, stop="x", frequency_penalty=1)
    assert found.generation.max_tokens == 7
    assert found.generation.sampling == {
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 3,
        "stop": ["x"],
        "frequency_penalty": 1.0,
    }


def test_what_clients_send_and_that_asks_for_nothing_is_taken() -> None:
    nothing = {
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "include": [],
        "truncation": "disabled",
        "reasoning": {"effort": None, "summary": None},
        "previous_response_id": None,
        "top_logprobs": 0,
        "service_tier": "auto",
        "user": "u",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "prompt_cache_retention": "24h",
        "stream_options": {"include_obfuscation": False},
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
    }
    found = asked(**nothing)
    assert (found.repeated["user"], found.repeated["service_tier"]) == ("u", "default")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": 7}, "input"),
        ({"input": [{"role": "robot", "content": "a"}]}, "input.0.role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.content.0.type"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input.0"),
        ({"input": [{"role": "user", "content": "a", "name": "b"}]}, "input.0.name"),
        ({"input": [{"type": "reasoning", "id": "a"}]}, "input"),
        ({"text": {"format": {"type": "xml"}}}, "text.format"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        (
            {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "nosuch"}}}},
            "text.format.schema",
        ),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"min_tokens": 9, "max_output_tokens": 8}, "min_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"service_tier": "scale"}, "service_tier"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"background": True, "store": False}, "store"),
        ({"webhook_url": "https://example.com"}, "webhook_url"),
        ({"max_tokens": 3}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ],
)
def test_a_wrong_field_is_named_as_the_caller_wrote_it(fields: dict[str, Any], param: str) -> None:
    error = refused(**fields)
    assert error.param == param
    for foreign in ("max_completion_tokens", "response_format", "messages"):
        assert foreign not in error.message or foreign in fields


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "web_search"}]},
        {"include": ["reasoning.encrypted_content"]},
        {"previous_response_id": "resp_1"},
        {"conversation": "conv_1"},
        {"prompt": {"id": "pmpt_1"}},
        {"reasoning": {"effort": "high"}},
        {"truncation": "auto"},
        {"max_tool_calls": 3},
        {"top_logprobs": 3},
        {"moderation": {"model": "m"}},
        {"nosuch": 1},
    ],
)
def test_what_is_not_supported_is_refused_by_name(fields: dict[str, Any]) -> None:
    error = refused(**fields)
    assert isinstance(error, UnsupportedParameterError)
    assert error.param == next(iter(fields))


def test_a_form_that_no_engine_can_guide_is_refused_by_the_name_of_its_field() -> None:
    with pytest.raises(UnsupportedParameterError) as raised:
        requests.validate(
            {"model": "m", "input": "a", "text": {"format": {"type": "json_object"}}}, {"m": frozenset()}
        )
    assert raised.value.param == "text.format"
    assert raised.value.message.startswith("text.format: ")


def test_the_parameters_that_a_response_repeats_are_those_of_openai_s_type() -> None:
    known = set(Response.model_fields)
    assert set(asked().repeated) - known == {"store"}, "which OpenAI sends too"
    assert json.dumps(asked().repeated)
