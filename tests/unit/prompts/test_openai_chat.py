import math
from typing import Any

import openai
import pytest

from jobs.answers.completions import chat_completion, text_completion
from jobs.errors import InvalidRequestError, UnsupportedParameterError
from jobs.prompts import messages
from jobs.prompts.openai import (
    Generation,
    usage_object,
    validate_request,
)
from jobs.states.batch import Endpoint

HELLO = [{"role": "user", "content": "Hello"}]


def chat(**body: object) -> Generation:
    return validate_request(Endpoint.CHAT, {"model": "m", "messages": HELLO} | body)


def complete(**body: object) -> Generation:
    return validate_request(Endpoint.TEXT, {"model": "m", "prompt": "Hello"} | body)


def test_a_plain_chat_is_understood() -> None:
    asked = chat()
    assert messages.parse(asked.canonical).messages == [messages.Message("user", "Hello")]
    assert (asked.model, asked.max_tokens, asked.sampling) == ("m", None, {"temperature": 1.0})
    assert (asked.stream, asked.include_usage) == (False, False)


def test_everything_that_is_supported_is_kept() -> None:
    sampling = {"temperature": 1, "top_p": 0.5, "top_k": 3, "seed": 7, "stop": ["a", "b"]}
    assert chat(**sampling).sampling == sampling
    assert chat(stop="a").sampling == {"temperature": 1.0, "stop": ["a"]}
    assert chat(max_tokens=5).max_tokens == 5
    assert chat(max_completion_tokens=6).max_tokens == 6
    assert chat(max_tokens=6, max_completion_tokens=6).max_tokens == 6
    assert chat(stream=True, stream_options={"include_usage": True}).include_usage


def test_without_a_temperature_openai_s_own_holds() -> None:
    assert chat().sampling == complete().sampling == chat(temperature=None).sampling == {"temperature": 1.0}
    assert chat(temperature=0).sampling == complete(temperature=0).sampling == {"temperature": 0}


def test_null_is_as_good_as_absent() -> None:
    names = ["temperature", "top_p", "seed", "stop", "max_tokens", "tools", "logprobs", "n", "stream", "user"]
    assert chat(**dict.fromkeys(names)) == chat()


@pytest.mark.parametrize(
    "neutral",
    [
        {"n": 1},
        {"presence_penalty": 0.0, "frequency_penalty": 0},
        {"response_format": {"type": "text"}},
        {"tools": [], "tool_choice": "auto"},
        {"logprobs": False, "top_logprobs": 0},
        {"user": "somebody", "metadata": {"a": "b"}, "store": False},
    ],
)
def test_parameters_that_ask_for_nothing_change_nothing(neutral: dict[str, object]) -> None:
    assert chat(**neutral) == chat()


def test_parts_of_text_are_joined_and_developers_are_the_system() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    asked = chat(messages=[{"role": "developer", "content": parts}, *HELLO])
    assert messages.parse(asked.canonical).messages[0] == messages.Message("system", "ab")


def test_a_text_is_kept_without_a_frame() -> None:
    assert messages.plain_text(complete().canonical) == "Hello"
    assert complete(prompt=["Hello"]) == complete()
    assert messages.plain_text(chat().canonical) is None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": 0}, "top_k"),
        ({"seed": -1}, "seed"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"stop": [""]}, "stop.0"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_completion_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": "Hello"}, "messages"),
        ({"messages": [{"role": "function", "content": "x"}]}, "messages.0.role"),
        ({"messages": [*HELLO, {"role": "user"}]}, "messages.1.content"),
        ({"messages": [{"role": "user", "content": "a\0"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": "x", "name": "y"}]}, "messages.0.name"),
        ({"model": None}, "model"),
        ({"model": ""}, "model"),
        ({"stream_options": {"strange": 1}}, "stream_options.strange"),
    ],
)
def test_a_wrong_parameter_is_named(body: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        chat(**body)
    assert caught.value.param == param
    assert "Hello" not in caught.value.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("functions", [{"name": "f"}]),
        ("function_call", {"name": "f"}),
        ("best_of", 2),
        ("wisdom", 1),
    ],
)
def test_what_is_not_supported_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(UnsupportedParameterError) as caught:
        chat(**{name: value})
    assert (caught.value.param, caught.value.code) == (name, "unsupported_parameter")


@pytest.mark.parametrize("prompt", [["a", "b"], [1, 2], [], "", 7])
def test_only_one_text_is_a_prompt(prompt: object) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        complete(prompt=prompt)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("number", [2**31 - 1, 2**31 - 2**24, 2**63, 10**30])
def test_more_output_than_an_integer_holds_with_its_prompt_is_refused_by_name(name: str, number: int) -> None:
    with pytest.raises(InvalidRequestError, match="2130706431") as caught:
        chat(**{name: number})
    assert caught.value.param == name
    assert chat(**{name: 2**31 - 1 - 2**24}).max_tokens == 2130706431


@pytest.mark.parametrize("number", [-1, 2**63, 10**30])
def test_a_seed_outside_of_its_range_is_refused_by_name(number: int) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        complete(seed=number)
    assert caught.value.param == "seed"


def test_the_objects_are_those_that_clients_know() -> None:
    fields: dict[str, Any] = {
        "identifier": "1",
        "created": 7,
        "model": "m",
        "text": "Hi",
        "finish_reason": "stop",
        "usage": usage_object(prompt_tokens=3, completion_tokens=2),
    }
    chatted = openai.types.chat.ChatCompletion.model_validate(chat_completion(**fields))
    assert (chatted.id, chatted.choices[0].message.content) == ("chatcmpl-1", "Hi")
    completed = openai.types.Completion.model_validate(text_completion(**fields))
    assert completed.usage is not None
    assert (completed.id, completed.choices[0].text, completed.usage.total_tokens) == ("cmpl-1", "Hi", 5)
