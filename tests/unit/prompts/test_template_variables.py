"""A caller's `chat_template_kwargs`: rendered, counted, and refused where they cannot be."""

import json
from pathlib import Path
from typing import Any

import pytest

from jobs.errors import InvalidRequestError
from jobs.prompts import openai
from jobs.prompts.chat_template import ChatTemplate, ChatTemplateError, ControlToken, TemplateVariablesError
from jobs.prompts.counter import PromptCounter, count_short
from jobs.prompts.messages import Message, Role, canonical
from jobs.prompts.tokenizer import Tokenizer
from jobs.states.batch import Endpoint
from reasoning_support import BEGIN_ID, END_ID, thinking_tokenizer

TURNS = [Message("user", "Why?")]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(str(thinking_tokenizer(tmp_path_factory.mktemp("thinking"))))


def rendered(tokenizer: Tokenizer, **variables: object) -> str:
    ids = tokenizer.encode_messages(TURNS, variables=json.dumps(variables) if variables else "")
    return tokenizer.markup.write(ids).rpartition("<|end_header_id|>\n\n")[2]


@pytest.mark.parametrize(
    ("variables", "tail"),
    [
        ({}, ""),
        ({"enable_thinking": False}, "<think>\n\n</think>\n\n"),
        ({"enable_thinking": True, "opens": True}, "<think>\n"),
        ({"effort": "low"}, "Effort: LOW\n"),
        ({"nobody_reads_this": {"deep": [1, None]}}, ""),
    ],
)
def test_the_template_sees_the_caller_s_variables(
    tokenizer: Tokenizer, variables: dict[str, object], tail: str
) -> None:
    assert rendered(tokenizer, **variables) == tail


def test_variables_are_part_of_the_count_and_stored_so_that_a_recount_gives_the_same(
    tokenizer: Tokenizer,
) -> None:
    counter = PromptCounter(tokenizer)
    plain = counter.count_prompt(canonical(TURNS))
    stored = canonical(TURNS, variables={"enable_thinking": False})
    closed = counter.count_prompt(stored)
    assert closed.num_tokens == plain.num_tokens + 4
    assert counter.count_prompt(stored) == closed


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"effort": 3}, "fails with them"),
        ({"effort": None}, "fails with them"),
        ({"messages": []}, "'messages' cannot be set"),
        ({"bos_token": ""}, "'bos_token' cannot be set"),
        ({"effort": "a<|eot_id|>"}, "control token"),
        ({"deep": [{"<think>": 1}]}, "control token"),
        ({"effort": "\uf8ff0\uf8fe"}, "control token"),
        # What could become one beside a text of the template's own, or of another variable.
        ({"effort": "a<|eot"}, "control token"),
        ({"effort": "_id|>"}, "control token"),
        ({"effort": ["a", {"b": "ends with <"}]}, "control token"),
        ({"effort": " k>"}, "control token"),
        ({"<th": 1}, "control token"),
    ],
)
def test_variables_that_the_template_cannot_take_are_refused_by_name(
    tokenizer: Tokenizer, variables: dict[str, object], reason: str
) -> None:
    with pytest.raises(TemplateVariablesError, match=reason) as caught:
        rendered(tokenizer, **variables)
    assert caught.value.param == "chat_template_kwargs"


CONTROLS = [ControlToken("<|eot_id|>", 1), ControlToken("<|python_tag|>", 2)]
TURN = "{{ messages[0].content }}<|eot_id|>"


@pytest.mark.parametrize(
    "variables",
    [
        {"a": "<|eot", "b": "_id|>"},
        {"a": "<", "b": "|eot_id|>"},
        {"a": "<|EOT_ID|>".lower()},
        {"c": "<|EOT_ID|>"},
    ],
)
def test_no_control_token_is_made_of_pieces(variables: dict[str, str]) -> None:
    source = TURN + "{{ a }}{{ b }}{{ (c or '') | lower }}"
    template = ChatTemplate(source, control_tokens=CONTROLS, variables={})
    with pytest.raises(TemplateVariablesError, match="control token"):
        template.skeleton(("user",), json.dumps(variables))


@pytest.mark.parametrize("source", ["<|{{ a }}|>", "{{ '<|' ~ a ~ '|>' }}", "{{ '%s%s|>' % ('<|', a) }}"])
def test_where_a_template_writes_part_of_a_control_token_no_variable_is_the_rest(source: str) -> None:
    template = ChatTemplate(TURN + source, control_tokens=CONTROLS, variables={})
    with pytest.raises(TemplateVariablesError, match="control token"):
        template.skeleton(("user",), json.dumps({"a": "eot_id"}))


@pytest.mark.parametrize("text", ["on", "python", "tag", "e", "a < b", "text|", "|"])
def test_words_within_control_tokens_are_no_part_of_one(text: str) -> None:
    template = ChatTemplate(
        TURN + "{{ 'yes' if a == '" + text + "' }}", control_tokens=CONTROLS, variables={}
    )
    assert template.skeleton(("user",), json.dumps({"a": text})) == ((0,), 1, ("yes",))


def test_only_the_markup_of_short_conversations_is_kept() -> None:
    template = ChatTemplate(
        "{% for each in messages %}{{ each.content }}\n{% endfor %}", control_tokens=[], variables={}
    )
    short: tuple[Role, ...] = ("user", "assistant")
    long = short * 2000
    assert template.skeleton(short, "") is template.skeleton(short, "")
    assert template.skeleton(long, "") is not template.skeleton(long, "")


def test_roles_that_the_template_refuses_are_no_fault_of_the_variables(tmp_path: Path) -> None:
    strict = (
        "{{ raise_exception('no system role') if messages[0].role == 'system' }}{{ messages[0].content }}"
    )
    tokenizer = Tokenizer.load(str(thinking_tokenizer(tmp_path, template=strict)))
    with pytest.raises(ChatTemplateError, match="no system role") as caught:
        tokenizer.encode_messages([Message("system", "a")], variables='{"x":1}')
    assert caught.value.param is None


@pytest.mark.parametrize("num_chars", [10, 10_000])
def test_variables_are_tried_before_a_job_is_stored_however_long_its_prompt_is(
    tokenizer: Tokenizer, num_chars: int
) -> None:
    turns = [Message("user", "a" * num_chars)]
    counter = PromptCounter(tokenizer)
    with pytest.raises(InvalidRequestError, match="fails") as caught:
        count_short(canonical(turns, variables={"effort": 1}), counter, max_chars=1000)
    assert caught.value.param == "chat_template_kwargs"
    counted = count_short(canonical(turns, variables={"effort": "x"}), counter, max_chars=1000)
    assert (counted is None) == (num_chars > 1000)


def nested(depth: int) -> list[object]:
    """Return lists in lists, made without the parser's own limit, which depends on the stack."""
    made: list[object] = []
    for _ in range(depth - 1):
        made = [made]
    return made


@pytest.mark.parametrize(
    "variables",
    [
        [],
        "on",
        {"a": "x" * 5000},
        {"a": float("inf")},
        {"a": "\ud800"},
        {"a": [float("nan")]},
        {"a": [{"b\0": 1}]},
        {"a": nested(20)},
        {"a": nested(950)},
    ],
)
def test_chat_template_kwargs_are_an_object_of_bounded_size(variables: object) -> None:
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    with pytest.raises(InvalidRequestError) as caught:
        openai.validate_request(Endpoint.CHAT, body | {"chat_template_kwargs": variables})
    assert caught.value.param == "chat_template_kwargs"


def test_a_text_completion_has_no_template_and_refuses_variables() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        openai.validate_request(
            Endpoint.TEXT, {"model": "m", "prompt": "a", "chat_template_kwargs": {"a": 1}}
        )
    assert caught.value.param == "chat_template_kwargs"


def test_without_variables_the_stored_prompt_is_what_it_always_was() -> None:
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Why?"}]}
    nothing: tuple[dict[str, object] | None, ...] = (None, {})
    for variables in nothing:
        asked = openai.validate_request(Endpoint.CHAT, body | {"chat_template_kwargs": variables})
        assert asked.canonical == canonical(TURNS)


def test_the_id_of_a_tag_is_the_same_in_the_prompt_and_in_the_answer(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_messages(TURNS, variables='{"enable_thinking":false}').tolist()
    assert [each for each in ids if each in (BEGIN_ID, END_ID)] == [BEGIN_ID, END_ID]
