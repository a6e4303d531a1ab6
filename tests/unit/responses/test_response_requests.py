"""What a request for a response may say, and how its errors name its own fields."""

import json
from typing import Any
from uuid import UUID

import pytest
from openai.types.responses import Response, ResponseItem
from pydantic import TypeAdapter

from jobs.errors import InvalidRequestError, UnsupportedParameterError
from jobs.prompts import messages
from jobs.prompts.guides import GuideKind
from jobs.responses import requests
from jobs.responses.items import chat_messages, listed_items, stored_item
from jobs.responses.requests import AskedResponse

ITEM: TypeAdapter[ResponseItem] = TypeAdapter(ResponseItem)
TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}
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


def test_calls_and_their_results_are_turns_of_a_chat() -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city":"Oslo"}'}
    items: list[dict[str, Any]] = [
        {"role": "user", "content": "Oslo? Rome?"},
        {"role": "assistant", "content": "Let me look."},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        call | {"id": "fc_1", "status": "completed"},
        call | {"call_id": "c2", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "dry"}]},
        {"type": "function_call_output", "call_id": "c1", "output": "wet"},
        call | {"call_id": "c3"},
        {"type": "function_call_output", "call_id": "c3", "output": "wet still"},
    ]
    request = requests.ResponseRequest.model_validate({"model": "m", "input": items})
    assert not isinstance(request.input, str)
    asked_for = chat_messages(request.input, None)
    functions = {
        number: {
            "id": f"c{number}",
            "type": "function",
            "function": {"name": "weather", "arguments": "{}" if number == 2 else '{"city":"Oslo"}'},
        }
        for number in (1, 2, 3)
    }
    assert asked_for == [
        {"role": "user", "content": "Oslo? Rome?"},
        {"role": "assistant", "content": "Let me look.", "tool_calls": [functions[1], functions[2]]},
        {"role": "tool", "tool_call_id": "c2", "content": "dry"},
        {"role": "tool", "tool_call_id": "c1", "content": "wet"},
        {"role": "assistant", "content": None, "tool_calls": [functions[3]]},
        {"role": "tool", "tool_call_id": "c3", "content": "wet still"},
    ]
    listed = listed_items(UUID(int=1), [stored_item(item) for item in request.input])
    assert [item["type"] for item in listed] == [item.get("type", "message") for item in items]
    for item in listed:
        ITEM.validate_python(item)


def test_log_probabilities_are_those_of_a_chat() -> None:
    wanted = asked(include=["message.output_text.logprobs"], top_logprobs=2)
    assert wanted.generation.sampling["logprobs"] == 2
    assert wanted.repeated["top_logprobs"] == 2
    assert asked(include=["message.output_text.logprobs"]).generation.sampling["logprobs"] == 0
    assert "logprobs" not in asked(include=[], top_logprobs=0).generation.sampling


def test_functions_are_those_of_a_chat_and_are_repeated() -> None:
    found = asked(
        tools=[TOOL], tool_choice={"type": "function", "name": "weather"}, parallel_tool_calls=False
    )
    assert found.generation.form.calls is not None
    assert (found.generation.form.calls.names, found.generation.form.calls.is_required) == (
        ("weather",),
        True,
    )
    assert found.repeated["tool_choice"] == {"type": "function", "name": "weather"}
    assert found.repeated["parallel_tool_calls"] is False
    assert found.repeated["tools"] == [TOOL | {"description": None, "strict": False}]


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
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"tools": [TOOL | {"parameters": {"type": "nosuch"}}]}, "tools.0.parameters"),
        ({"tools": [TOOL, TOOL]}, "tools.1.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "b"}}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice.type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "1"}]}, "input.0.call_id"),
        (
            {"input": [{"type": "function_call", "call_id": "c", "name": "a b", "arguments": ""}]},
            "input.0.name",
        ),
        ({"include": ["reasoning.encrypted_content"]}, "include.0"),
        ({"top_logprobs": 21}, "top_logprobs"),
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
        {"previous_response_id": "resp_1"},
        {"conversation": "conv_1"},
        {"prompt": {"id": "pmpt_1"}},
        {"reasoning": {"effort": "high"}},
        {"truncation": "auto"},
        {"max_tool_calls": 3},
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
