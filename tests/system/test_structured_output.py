"""Answers of a form over real llama.cpp: guided by it, checked, refused by name where it cannot guide."""

import functools
import json
import re
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from cli.stack.stack import Stack
from openai_support import ended, jsonl, results, run
from system_support import Client

pytestmark = pytest.mark.timeout(400)

ENGINE_MODE = "llama"
MODEL = "SmolLM2-135M-Instruct.Q4_1"
ASKED: list[Any] = [{"role": "user", "content": "Describe the city of Oslo, the capital of Norway."}]
CITY = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "size": {"enum": ["small", "large"]},
        "founded": {"type": "integer", "minimum": 0, "maximum": 2000},
    },
    "required": ["name", "size", "founded"],
    "additionalProperties": False,
}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}}
# Its check takes time that doubles with each step.
COSTLY = {
    "$defs": {
        **{f"s{n}": {"anyOf": [{"$ref": f"#/$defs/s{n + 1}"}] * 2} for n in range(60)},
        "s60": {"type": "null"},
    },
    "properties": {"a": {"type": "string", "maxLength": 5}},
    "required": ["a"],
    "if": {"not": {"$ref": "#/$defs/s0"}},
}


def doubling(keyword: str, *, steps: int = 40) -> dict[str, Any]:
    """A schema whose branches double with each step."""
    names = [f"s{step}" for step in range(steps)]
    steps_down = {name: {keyword: [{"$ref": f"#/$defs/s{at + 1}"}] * 2} for at, name in enumerate(names)}
    return {"$defs": {**steps_down, f"s{steps}": {"type": "integer"}}, "$ref": "#/$defs/s0"}


# Accepted, as each is a schema within the limits; none may end otherwise than by itself.
HOSTILE: dict[str, dict[str, Any]] = {
    "a reference to itself": {"$ref": "#"},
    "references in a circle": {
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
        "$ref": "#/$defs/a",
    },
    "allOf in a circle": {"allOf": [{"$ref": "#"}, {"type": "object"}]},
    "doubling anyOf": doubling("anyOf"),
    "doubling oneOf": doubling("oneOf"),
    "doubling allOf": doubling("allOf"),
    "thousands of values": {"enum": [f"{number:05x}" for number in range(6500)]},
    "thousands of properties": {"properties": {f"k{number}": {"type": "integer"} for number in range(2000)}},
    "a million million items": {
        "minItems": 10_000,
        "items": {"minItems": 10_000, "items": {"minItems": 10_000}},
    },
    "nested quantifiers": {"type": "string", "pattern": "^(a+)+$"},
    "a pattern with many states": {"type": "string", "pattern": "^(a|b)*a(a|b){20}$"},
    "steps of a large prime": {"type": "integer", "multipleOf": 999_983},
    "bounds of hundreds of digits": {"type": "number", "minimum": 1e-300, "maximum": 1.7e308},
    "a deep array": functools.reduce(lambda inner, _: {"type": "array", "items": inner}, range(60), {}),
}


class City(BaseModel):
    """A city, as a client's own class."""

    name: str
    size: Literal["small", "large"]
    population: int


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[Client]:
    with Client(stack.urls) as found:
        yield found


@pytest.fixture(scope="module")
def sdk(stack: Stack) -> Iterator[openai.OpenAI]:
    base_url, api_key = f"{stack.urls.api_url}/v1", stack.urls.api_key or ""
    with openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0, timeout=120) as found:
        yield found


def is_city(text: str | None) -> bool:
    found = json.loads(text or "")
    return set(found) == {"name", "size", "founded"} and 0 <= found["founded"] <= 2000


def test_openai_s_client_parses_an_answer_into_its_own_class(sdk: openai.OpenAI) -> None:
    answer = sdk.chat.completions.parse(model=MODEL, messages=ASKED, response_format=City, max_tokens=120)
    assert answer.choices[0].finish_reason == "stop"
    city = answer.choices[0].message.parsed
    assert isinstance(city, City)


def test_a_streamed_answer_has_its_form(sdk: openai.OpenAI) -> None:
    asked = sdk.chat.completions.create(
        model=MODEL, messages=ASKED, response_format=FORMAT, max_tokens=120, stream=True
    )
    pieces = [each.choices[0].delta.content or "" for each in asked]
    assert len(pieces) > 5
    assert is_city("".join(pieces))


def test_any_json_object_is_asked_for_as_openai_does(sdk: openai.OpenAI) -> None:
    answer = sdk.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": 'Write {"a": 1} and nothing more.'}],
        response_format={"type": "json_object"},
        max_tokens=200,
        temperature=0,
    )
    choice = answer.choices[0]
    assert (choice.message.content or "").lstrip().startswith("{")
    assert choice.finish_reason == "length" or isinstance(json.loads(choice.message.content or ""), dict)


@pytest.mark.parametrize(
    "form",
    [
        {"structured_outputs": {"choice": ["red", "green"]}},
        {"guided_choice": ["red", "green"]},
        {"structured_outputs": {"grammar": 'root ::= "red" | "green"'}},
        {"guided_grammar": 'root ::= "red" | "green"'},
    ],
)
def test_vllm_s_fields_guide_text_completions(sdk: openai.OpenAI, form: dict[str, Any]) -> None:
    answer = sdk.completions.create(model=MODEL, prompt="My colour is", max_tokens=20, extra_body=form)
    assert answer.choices[0].text in {"red", "green"}
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("form", [{"guided_json": CITY}, {"structured_outputs": {"json": json.dumps(CITY)}}])
def test_a_native_job_has_its_form(client: Client, form: dict[str, Any]) -> None:
    job = client.submit("Describe Oslo.", max_tokens=120, **form)
    assert client.finished(job["id"], timeout=120)["state"] == "completed"
    assert is_city(client.result(job["id"])["output"])


@pytest.mark.parametrize(
    "unknown",
    [
        {"not": {"required": ["zz"]}},
        {
            "properties": {
                "a": {
                    "type": "array",
                    "items": {"type": "boolean"},
                    "minItems": 1,
                    "maxItems": 2,
                    "contains": True,
                }
            }
        },
        {"properties": {"a": {"type": "string", "format": "nosuch", "maxLength": 4}}},
        {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
    ],
)
def test_an_answer_is_guided_by_what_the_engine_knows_of_its_schema(
    sdk: openai.OpenAI, unknown: dict[str, Any]
) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
        **unknown,
    }
    form: Any = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    answer = sdk.chat.completions.create(
        model=MODEL, messages=ASKED, response_format=form, max_tokens=60, temperature=0
    )
    assert answer.choices[0].finish_reason == "stop"
    assert set(json.loads(answer.choices[0].message.content or "")) == {"a"}


def test_an_answer_that_is_cut_says_so(sdk: openai.OpenAI) -> None:
    answer = sdk.chat.completions.create(model=MODEL, messages=ASKED, response_format=FORMAT, max_tokens=3)
    assert answer.choices[0].finish_reason == "length"
    with pytest.raises(openai.LengthFinishReasonError):
        sdk.chat.completions.parse(model=MODEL, messages=ASKED, response_format=City, max_tokens=3)


def test_each_route_refuses_what_the_engine_cannot_guide_and_says_what_it_can(
    sdk: openai.OpenAI, client: Client
) -> None:
    form = {"structured_outputs": {"regex": "[0-9]{4}"}}
    with pytest.raises(openai.BadRequestError) as raised:
        sdk.chat.completions.create(model=MODEL, messages=ASKED, extra_body=form)
    assert (raised.value.param, raised.value.code) == ("structured_outputs.regex", "unsupported_parameter")
    for word in (MODEL, "guided_regex", "guided_choice", "guided_json"):
        assert word in raised.value.message
    native = client.http.post("/v1/jobs", json={"input": "x", **form})
    assert native.status_code == 400
    assert native.json()["error"]["param"] == "structured_outputs.regex"
    lines = jsonl([{"input": "x", **form}, {"input": "Say yes.", "max_tokens": 2}])
    bulk = client.http.post("/v1/jobs/bulk", content=lines, headers={"Content-Type": "application/x-ndjson"})
    assert [each["param"] for each in bulk.json()["errors"]] == ["structured_outputs.regex"]
    assert len(bulk.json()["ids"]) == 1


def test_hostile_schemas_end_clearly_each_by_itself(client: Client) -> None:
    """A refusal, an answer that is cut or right, or a failure that names the form; the engine goes on."""
    lines = [
        {"input": "Answer in JSON.", "guided_json": each, "max_tokens": 4, "temperature": 0}
        for each in HOSTILE.values()
    ]
    told = client.http.post(
        "/v1/jobs/bulk", content=jsonl(lines), headers={"Content-Type": "application/x-ndjson"}
    ).json()
    assert told["errors"] == []
    ends = {
        name: client.finished(job_id, timeout=300) for name, job_id in zip(HOSTILE, told["ids"], strict=True)
    }
    unclear = {
        name: ended
        for name, ended in ends.items()
        if ended["state"] != "completed" and (ended["error"] or {}).get("code") != "invalid_output"
    }
    assert unclear == {}
    assert client.finished(client.submit("Say yes.", max_tokens=2)["id"])["state"] == "completed"


def test_a_form_in_words_is_checked_and_never_wrong(client: Client) -> None:
    """A model this small may fail; then its job does, and says why."""
    job = client.submit(
        "In which year did Columbus reach America?",
        max_tokens=24,
        guided_regex=r"(.|\n)*14[0-9]{2}(.|\n)*",
        structured_fallback="words",
    )
    found = client.finished(job["id"], timeout=180)
    if found["state"] == "completed" and found["finish_reason"] == "stop":
        assert re.search("14[0-9]{2}", client.result(job["id"])["output"])
    elif found["state"] == "failed":
        assert found["error"]["code"] == "invalid_output"
        assert found["attempt"] > 1


def test_lines_of_a_batch_have_their_forms_and_fail_alone(sdk: openai.OpenAI) -> None:
    def line(name: str, **body: Any) -> dict[str, Any]:  # noqa: ANN401  # a request's fields
        asked = {"model": MODEL, "messages": ASKED, "max_tokens": 120} | body
        return {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": asked}

    lines = [
        line("right", response_format=FORMAT),
        line("regex", guided_regex="a+"),
        line(
            "wrong",
            response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": 3}}},
        ),
        line("costly", guided_json=COSTLY, max_tokens=60),
        line("last", response_format=FORMAT),
    ]
    done = ended(sdk, run(sdk, jsonl(lines)).id, timeout=300)
    assert done.status == "completed"
    answers = results(sdk, done.output_file_id)
    errors = results(sdk, done.error_file_id)
    assert set(answers) >= {"right", "last"}
    for name in ("right", "last"):
        assert is_city(answers[name]["response"]["body"]["choices"][0]["message"]["content"])
    assert errors["regex"]["response"]["body"]["error"]["param"] == "guided_regex"
    assert errors["wrong"]["response"]["body"]["error"]["param"] == "response_format.json_schema.schema"
    assert "costly" in {*answers, *errors}
