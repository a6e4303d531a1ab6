"""Requests with tools: what is taken, what is refused by which name, and what the engine is to see to."""

import json
from typing import Any

import pytest

from jobs.errors import InvalidRequestError, UnsupportedParameterError
from jobs.prompts.abilities import ABILITIES, ALWAYS, GUIDED, TOOLS, Takes
from jobs.prompts.guides import GuideKind
from jobs.prompts.messages import Message, parse
from jobs.prompts.openai import Generation, validate_request
from jobs.prompts.tools.calls import ToolCall
from jobs.prompts.tools.definitions import MAX_TOOLS, MAX_TOOLS_BYTES
from jobs.prompts.tools.forms import AnswerForm
from jobs.states.batch import Endpoint
from tools_support import CLOCK, WEATHER

ASK = [{"role": "user", "content": "Hello"}]
STRICT = {"type": "function", "function": WEATHER["function"] | {"strict": True}}
EVERYTHING: Takes = {"m": ABILITIES | {TOOLS}}


def chat(takes: Takes = EVERYTHING, **body: Any) -> Generation:  # noqa: ANN401  # JSON
    return validate_request(Endpoint.CHAT, {"model": "m", "messages": ASK} | body, takes)


def function(**fields: Any) -> dict[str, Any]:  # noqa: ANN401  # JSON
    return {"type": "function", "function": {"name": "f"} | fields}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def test_tools_are_part_of_the_prompt_and_any_call_of_the_answer_is_one_of_them() -> None:
    asked = chat(tools=[WEATHER, function()])
    told = parse(asked.canonical).tools
    assert told[0] == WEATHER
    parameters = {"type": "object", "properties": {}}
    assert told[1]["function"] == {"name": "f", "description": "", "parameters": parameters}
    assert asked.form.guide is None
    assert asked.form.calls is not None
    assert (asked.form.calls.names, asked.form.calls.is_required) == (("get_weather", "f"), False)
    assert not asked.is_whole, "an answer that may call can be cut into segments"


@pytest.mark.parametrize("fields", [{}, {"tools": []}, {"tools": [WEATHER], "tool_choice": "none"}])
def test_without_tools_nothing_is_told_of_any(fields: dict[str, Any]) -> None:
    asked = chat(**fields)
    assert (asked.form, parse(asked.canonical).tools) == (AnswerForm(), ())
    assert asked.form.written() is None


def test_a_required_call_is_guided_by_the_schemas_of_all_functions() -> None:
    form = chat(tools=[WEATHER, CLOCK], tool_choice="required").form
    assert form.guide is not None
    assert (form.guide.kind, form.is_guided) == (GuideKind.JSON, True)
    first, second = form.guide.schema["anyOf"]
    assert list(first["properties"]) == ["name", "arguments"], "engines write properties in this order"
    assert first["properties"]["name"] == {"enum": ["get_weather"]}
    assert first["properties"]["arguments"] == WEATHER["function"]["parameters"]
    assert second["properties"]["name"] == {"enum": ["clock"]}
    assert form.calls is not None
    assert (form.calls.is_required, form.calls.is_json, form.calls.is_parallel) == (True, True, False)


def test_a_function_by_name_is_the_only_one_that_is_guided_to() -> None:
    asked = chat(tools=[WEATHER, CLOCK], tool_choice=named("clock"))
    assert asked.form.guide is not None
    assert asked.form.guide.schema["properties"]["name"] == {"enum": ["clock"]}
    assert asked.form.calls is not None
    assert asked.form.calls.names == ("clock",)
    assert len(parse(asked.canonical).tools) == 2, "the model is told of all"
    assert asked.is_whole


def test_required_calls_are_several_where_that_is_asked_for() -> None:
    form = chat(tools=[WEATHER], tool_choice="required", parallel_tool_calls=True).form
    assert form.guide is not None
    assert (form.guide.schema["type"], form.guide.schema["minItems"]) == ("array", 1)
    single = chat(tools=[WEATHER], parallel_tool_calls=False).form.calls
    assert single is not None
    assert not single.is_parallel


def test_references_within_arguments_still_find_what_they_refer_to() -> None:
    parameters = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/A"}, "$ref": {"type": "string"}},
        "$defs": {"A": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/A"}]}},
    }
    form = chat(tools=[CLOCK, function(parameters=parameters)], tool_choice="required").form
    assert form.guide is not None
    schema = form.guide.schema
    assert schema["anyOf"][1]["properties"]["arguments"]["properties"]["a"] == {"$ref": "#/$defs/1.A"}
    assert schema["$defs"]["1.A"]["anyOf"][1] == {"$ref": "#/$defs/1.A"}
    other = parameters | {"properties": {"a": {"$ref": "#/properties/b"}, "b": {}}}
    with pytest.raises(InvalidRequestError) as raised:
        chat(tools=[function(parameters=other)], tool_choice="required")
    assert raised.value.param == "tool_choice"


@pytest.mark.parametrize("choice", ["required", named("get_weather")])
def test_a_response_format_has_no_effect_where_a_function_must_be_called(
    choice: str | dict[str, Any],
) -> None:
    options = {"name": "n", "schema": {"type": "object", "properties": {"a": {"type": "string"}}}}
    asked: dict[str, Any] = {"tools": [WEATHER], "tool_choice": choice}
    for response_format in ({"type": "json_object"}, {"type": "json_schema", "json_schema": options}):
        both = chat(**asked, response_format=response_format)
        assert both.form == chat(**asked).form
        assert both.canonical == chat(**asked).canonical
    with pytest.raises(InvalidRequestError) as raised:
        chat(**asked, structured_outputs={"json_object": True})
    assert raised.value.param == "tools", "vLLM's words are a form that the caller insists on"


def test_what_is_stored_of_a_form_reads_the_same() -> None:
    for choice in ("auto", "required"):
        form = chat(tools=[STRICT, CLOCK], tool_choice=choice).form
        written = form.written()
        assert written is not None
        assert AnswerForm.read(written) == form
        assert form.calls is not None
        assert json.loads(form.calls.strict["get_weather"]) == WEATHER["function"]["parameters"]
        assert "clock" not in form.calls.strict


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools.0.function"),
        ({"tools": [{"type": "retrieval", "function": {"name": "f"}}]}, "tools.0.type"),
        ({"tools": [function(name="a b")]}, "tools.0.function.name"),
        ({"tools": [function(name="")]}, "tools.0.function.name"),
        ({"tools": [function(name="f" * 65)]}, "tools.0.function.name"),
        ({"tools": [function(name="f\n")]}, "tools.0.function.name"),
        ({"tools": [function(), function()]}, "tools.1.function.name"),
        ({"tools": [function(parameters={"type": "array"})]}, "tools.0.function.parameters"),
        ({"tools": [function(parameters={"type": 3})]}, "tools.0.function.parameters"),
        ({"tools": [function(parameters={"x": float("inf")})]}, "tools.0.function.parameters"),
        ({"tools": [function(parameters={"x": "\ud800"})]}, "tools.0.function.parameters"),
        ({"tools": [function(description="\ud800")]}, "tools.0.function.description"),
        ({"tools": [function(strange=1)]}, "tools.0.function.strange"),
        ({"tools": [function(name=f"f{n}") for n in range(MAX_TOOLS + 1)]}, "tools"),
        (
            {"tools": [function(name=f"f{n}", description="x" * (MAX_TOOLS_BYTES // 8)) for n in range(9)]},
            "tools",
        ),
        ({"tools": [WEATHER], "tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": named("clock")}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER], "parallel_tool_calls": 1}, "parallel_tool_calls"),
        ({"tools": [WEATHER], "response_format": {"type": "json_object"}}, "tools"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": "auto"}, "function_call"),
    ],
)
def test_what_cannot_be_is_refused_by_its_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        chat(**fields)
    assert raised.value.param == param
    assert param in raised.value.message


def test_a_schema_nested_too_deep_is_refused() -> None:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(100):
        schema = {"type": "object", "properties": {"a": schema}}
    with pytest.raises(InvalidRequestError, match="levels deep"):
        chat(tools=[function(parameters=schema)])


def test_the_older_words_are_refused_with_the_newer_ones() -> None:
    with pytest.raises(UnsupportedParameterError, match=r"functions is not supported.*tools"):
        chat(functions=[{"name": "f"}])
    with pytest.raises(UnsupportedParameterError, match=r"function_call is not supported.*tool_choice"):
        chat(function_call={"name": "f"})


def test_text_completions_have_no_tools() -> None:
    body = {"model": "m", "prompt": "x", "tools": [WEATHER]}
    with pytest.raises(UnsupportedParameterError) as raised:
        validate_request(Endpoint.TEXT, body)
    assert raised.value.param == "tools"
    assert validate_request(Endpoint.TEXT, body | {"tools": [], "tool_choice": "auto"})


def test_what_the_engine_cannot_do_is_refused_or_asked_for_in_words() -> None:
    old: Takes = {"m": ALWAYS}
    with pytest.raises(UnsupportedParameterError, match="'m'"):
        chat(old, tools=[WEATHER])
    free: Takes = {"m": EVERYTHING["m"] - GUIDED}
    assert chat(free, tools=[WEATHER]).form.calls is not None, "a call that may be needs no guide"
    with pytest.raises(UnsupportedParameterError) as raised:
        chat(free, tools=[WEATHER], tool_choice="required")
    assert raised.value.param == "tool_choice"
    assert "guided_json" in raised.value.message
    asked = chat(free, tools=[WEATHER], tool_choice="required", structured_fallback="words")
    assert asked.form.is_in_words
    assert "get_weather" in parse(asked.canonical).messages[-1].content
    with pytest.raises(InvalidRequestError) as refused:
        chat(free, tools=[WEATHER], tool_choice="required", structured_fallback="words", stream=True)
    assert refused.value.param == "structured_fallback"


CALL: dict[str, Any] = {
    "id": "c1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": "{}"},
}


def test_a_conversation_has_calls_and_their_results() -> None:
    made = {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None, "annotations": []}
    result = {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "rain"}]}
    notes = {"provider_specific_fields": {"refusal": None}}
    parsed = CALL | notes | {"index": 0, "function": CALL["function"] | {"parsed_arguments": {}}}
    by_client = {"parsed": {"a": 1}, "tool_calls": [parsed]} | notes
    for others in ({}, {"function_call": None, "audio": None}, by_client):
        asked = chat(messages=[*ASK, made | others, result])
        assert parse(asked.canonical).messages == [
            Message("user", "Hello"),
            Message("assistant", "", calls=(ToolCall("c1", "get_weather", "{}"),)),
            Message("tool", "rain", call_id="c1", name="get_weather"),
        ]


@pytest.mark.parametrize(
    ("turn", "param"),
    [
        ({"role": "assistant"}, "messages.1.content"),
        ({"role": "assistant", "content": None, "tool_calls": []}, "messages.1.content"),
        ({"role": "assistant", "tool_calls": [{"id": "c"}]}, "messages.1.tool_calls.0.function"),
        ({"role": "tool", "content": "x"}, "messages.1.tool_call_id"),
        ({"role": "tool", "content": "x", "tool_call_id": "c1"}, "messages.1.tool_call_id"),
        ({"role": "tool", "content": None, "tool_call_id": "c1"}, "messages.1.content"),
        ({"role": "user", "content": "x", "tool_calls": [CALL]}, "messages.1.tool_calls"),
        ({"role": "function", "content": "x"}, "messages.1.role"),
    ],
)
def test_a_turn_that_cannot_be_is_named(turn: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        chat(messages=[*ASK, turn])
    assert raised.value.param == param
