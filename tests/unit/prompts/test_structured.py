"""The forms that a request may ask for: every spelling of one, what is refused, what is asked in words."""

import json
from typing import Any

import pytest

from jobs.errors import InvalidRequestError, UnsupportedParameterError
from jobs.prompts import messages, openai
from jobs.prompts.abilities import ABILITIES, ALWAYS, Takes
from jobs.prompts.guides import MAX_BYTES, Guide, GuideKind
from jobs.prompts.openai import Generation
from jobs.states.batch import Endpoint

SCHEMA = {"type": "object", "properties": {"z": {"type": "integer"}, "a": {"type": "string"}}}
OBJECT = {"type": "object"}
HELLO = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]


def chat(takes: Takes | None = None, **fields: Any) -> Generation:  # noqa: ANN401  # of a request
    return openai.validate_request(Endpoint.CHAT, {"model": "m", "messages": HELLO} | fields, takes or {})


def openai_format(schema: object, **options: object) -> dict[str, Any]:
    found = {"name": "answer", "schema": schema} | options
    return {"response_format": {"type": "json_schema", "json_schema": found}}


@pytest.mark.parametrize(
    "fields",
    [
        openai_format(SCHEMA),
        openai_format(SCHEMA, strict=True, description="A pair"),
        {"structured_outputs": {"json": SCHEMA}},
        {"structured_outputs": {"json": json.dumps(SCHEMA)}},
        {"guided_json": SCHEMA},
        {"guided_json": json.dumps(SCHEMA)},
    ],
)
def test_every_spelling_of_a_schema_asks_for_the_same_in_its_own_order(fields: dict[str, Any]) -> None:
    guide = chat(**fields).form.guide
    assert guide is not None
    assert guide == Guide(GuideKind.JSON, json.dumps(SCHEMA, separators=(",", ":")))
    assert list(guide.schema["properties"]) == ["z", "a"]
    assert Guide.read(guide.written()) == guide


@pytest.mark.parametrize(
    ("fields", "kind", "content"),
    [
        ({"response_format": {"type": "json_object"}}, GuideKind.JSON, '{"type":"object"}'),
        ({"structured_outputs": {"json_object": True}}, GuideKind.JSON, '{"type":"object"}'),
        ({"structured_outputs": {"regex": "a+"}}, GuideKind.REGEX, "a+"),
        ({"guided_regex": "a+"}, GuideKind.REGEX, "a+"),
        ({"structured_outputs": {"choice": ["ä", '"']}}, GuideKind.CHOICE, json.dumps(["ä", '"'])),
        ({"guided_choice": ["a"]}, GuideKind.CHOICE, '["a"]'),
        ({"structured_outputs": {"grammar": "root ::= x"}}, GuideKind.GRAMMAR, "root ::= x"),
        ({"guided_grammar": "root ::= x"}, GuideKind.GRAMMAR, "root ::= x"),
    ],
)
def test_vllm_s_words_ask_for_the_other_forms(fields: dict[str, Any], kind: GuideKind, content: str) -> None:
    assert chat(**fields).form.guide == Guide(kind, content)


@pytest.mark.parametrize("fields", [{}, {"response_format": {"type": "text"}}, {"guided_json": None}])
def test_no_form_is_asked_for(fields: dict[str, Any]) -> None:
    assert chat(**fields).form.guide is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs.choice"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"jsn": {}}}, "structured_outputs.jsn"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": {}}}, "response_format"),
        ({"guided_json": {"minimum": float("nan")}}, "guided_json"),
        ({"guided_json": '{"minimum": Infinity}'}, "guided_json"),
        ({"guided_json": {"\ud800": 1, "pattern": "\ud800"}}, "guided_json"),
        ({"response_format": "json_object"}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.json_schema"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_json": "no JSON"}, "guided_json"),
        ({"guided_json": '{1: {"type": "object"}}'}, "guided_json"),
        ({"structured_fallback": "hope"}, "structured_fallback"),
    ],
)
def test_what_is_no_form_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        chat(**fields)
    assert raised.value.param == param


def nested(levels: int) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        found = {"items": found}
    return found


@pytest.mark.parametrize(
    ("schema", "word"),
    [
        ({"type": "nosuch"}, "nosuch"),
        ({"$ref": "https://example.com/schema"}, "example.com"),
        ({"$ref": "file:///etc/hostname"}, "file:"),
        ({"$ref": "#/$defs/missing"}, "missing"),
        ({"$schema": "https://example.com/mine"}, "meta-schema"),
        ({"pattern": "((a{1000}){1000}){1000}"}, "regex"),
        ({"pattern": "(?=a)b"}, "regex"),
        ({"maxLength": 10**9}, "maxLength must not exceed 10000"),
        ({"properties": {"a": {"minItems": 10_001}}}, "minItems must not exceed 10000"),
        ({"description": "x" * MAX_BYTES}, f"must not exceed {MAX_BYTES} bytes"),
        ({"enum": ["x" * 100] * 10_000}, f"must not exceed {MAX_BYTES} bytes"),
        ({"enum": [f"{number:08x}" for number in range(6000)]}, f"must not exceed {MAX_BYTES} bytes"),
        ({"anyOf": [{}] * 5001}, "more than 5000 objects"),
        (nested(64), "64 levels"),
        (nested(100_000), "64 levels"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_with_the_reason(schema: dict[str, Any], word: str) -> None:
    with pytest.raises(InvalidRequestError, match=word.replace("$", r"\$")) as raised:
        chat(**openai_format(schema))
    assert raised.value.param == "response_format.json_schema.schema"
    assert len(raised.value.message) < 500


@pytest.mark.parametrize("pattern", ["(?<=a)b", r"(a)\1", "(", "((a{1000}){1000}){1000}", "\ud800"])
def test_a_pattern_that_takes_more_than_linear_time_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        chat(guided_regex=pattern)
    assert raised.value.param == "guided_regex"


def test_a_property_may_be_called_like_a_limit() -> None:
    assert chat(guided_json={"properties": {"maxLength": {"type": "integer"}}}).form.guide is not None


def test_what_an_engine_cannot_guide_is_refused_with_what_it_takes() -> None:
    takes = {"m": ABILITIES - {GuideKind.REGEX.value}}
    assert chat(takes, guided_json=SCHEMA).form.guide is not None
    with pytest.raises(UnsupportedParameterError, match=r"'m'.*guided_regex.*guided_json") as raised:
        chat(takes, guided_regex="a")
    assert raised.value.param == "guided_regex"
    with pytest.raises(UnsupportedParameterError):
        chat({"m": ALWAYS}, **openai_format(SCHEMA))
    assert chat({"another": ALWAYS}, guided_regex="a").form.guide is not None, (
        "nothing is known of its engines"
    )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (openai_format(SCHEMA), '"z":{"type":"integer"}'),
        ({"guided_choice": ["red", "green"]}, "red\ngreen"),
        ({"guided_regex": "[0-9]+"}, "[0-9]+"),
    ],
)
def test_a_caller_may_ask_for_the_form_in_words_where_no_engine_guides(
    fields: dict[str, Any], words: str
) -> None:
    found = chat({"m": ALWAYS}, structured_fallback="words", **fields)
    assert found.form.guide is not None
    assert found.form.guide.in_words
    [system, user] = messages.parse(found.canonical).messages
    assert system.content == "Be brief."
    assert user.content.startswith("Hello\n\n")
    assert words in user.content
    guided = chat(structured_fallback="words", **fields)
    assert guided.form.guide is not None
    assert not guided.form.guide.in_words
    assert guided.canonical == chat().canonical


@pytest.mark.parametrize("fields", [{"stream": True}, {"guided_json": None, "guided_grammar": "root ::= x"}])
def test_no_stream_and_no_grammar_is_asked_for_in_words(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        chat({"m": ALWAYS}, **{"guided_json": SCHEMA, "structured_fallback": "words"} | fields)


def test_a_text_completion_is_not_asked_in_words() -> None:
    body = {"model": "m", "prompt": "x", "guided_json": OBJECT, "structured_fallback": "words"}
    with pytest.raises(InvalidRequestError, match="conversation"):
        openai.validate_request(Endpoint.TEXT, body, {"m": ALWAYS})
