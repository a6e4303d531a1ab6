"""Calls in answers: golden transcripts of each form, split everywhere, and whatever a model may write."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.prompts.tools import frames
from jobs.prompts.tools.formats import ToolFormat
from jobs.prompts.tools.forms import CallForm
from jobs.prompts.tools.frames import CallPart, FrameReader, TextPart
from jobs.prompts.tools.parser import CallParser

LLAMA3, HERMES = ToolFormat.LLAMA3, ToolFormat.HERMES
NAMES = ("get_weather", "clock")
AUTO = CallForm(NAMES, {})
ONE = CallForm(NAMES, {}, is_parallel=False)
REQUIRED = CallForm(NAMES, {}, is_required=True, is_json=True)
OSLO = '{"city": "Oslo"}'


@dataclass(frozen=True)
class Golden:
    """An answer, and what it says and calls."""

    said: str
    text: str
    calls: list[tuple[str, str]]
    markup: ToolFormat = HERMES
    form: CallForm = AUTO


GOLDEN = {
    "hermes": Golden(
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>',
        "",
        [("get_weather", OSLO)],
    ),
    "qwen, with text before it, and two calls": Golden(
        'Let me look.\n\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>\n',
        "Let me look.",
        [("get_weather", OSLO), ("clock", "{}")],
    ),
    "arguments before the name": Golden(
        '<tool_call>{"arguments": {"city": "Oslo"}, "name": "get_weather"}</tool_call>',
        "",
        [("get_weather", OSLO)],
    ),
    "arguments as a text": Golden(
        r'<tool_call>{"name": "get_weather", "arguments": "{\"city\": \"Oslo\"}"}</tool_call>',
        "",
        [("get_weather", OSLO)],
    ),
    "no arguments": Golden('<tool_call>{"name": "clock"}</tool_call>', "", [("clock", "{}")]),
    "null arguments": Golden(
        '<tool_call>{"name": "clock", "arguments": null}</tool_call>', "", [("clock", "{}")]
    ),
    "the closing tag in a string": Golden(
        '<tool_call>{"name": "clock", "arguments": {"a": "</tool_call>{\\"name\\""}}</tool_call>after',
        "after",
        [("clock", '{"a": "</tool_call>{\\"name\\""}')],
    ),
    "a raw line end in a string is repaired": Golden(
        '<tool_call>{"name": "clock", "arguments": {"a": "b\nc"}}</tool_call>',
        "",
        [("clock", '{"a": "b\\nc"}')],
    ),
    "a brace too few": Golden(
        '<tool_call>{"name": "clock", "arguments": {"a": 1}</tool_call>', "", [("clock", '{"a": 1}')]
    ),
    "a brace too many": Golden(
        '<tool_call>{"name": "clock", "arguments": {"a": 1}}}\n</tool_call>', "", [("clock", '{"a": 1}')]
    ),
    "arguments that are not JSON": Golden(
        '<tool_call>{"name": "clock", "arguments": {"a": tru}}</tool_call> and so on',
        "and so on",
        [("clock", '{"a": tru}}')],
    ),
    "a function that there is not": Golden(
        'I <tool_call>{"name": "rm", "arguments": {}}</tool_call>.',
        'I <tool_call>{"name": "rm", "arguments": {}}</tool_call>.',
        [],
    ),
    "no JSON": Golden("<tool_call>clock()</tool_call>", "<tool_call>clock()</tool_call>", []),
    "a call in what looked like one": Golden(
        '<tool_call>{"name": <tool_call>{"name": "clock", "arguments": {}}</tool_call>',
        '<tool_call>{"name":',
        [("clock", "{}")],
    ),
    "cut before the name": Golden('<tool_call>{"name": "clo', '<tool_call>{"name": "clo', []),
    "cut in the arguments": Golden(
        '<tool_call>{"name": "get_weather", "arguments": {"city": "Os',
        "",
        [("get_weather", '{"city": "Os')],
    ),
    "cut in the tag": Golden("Well, \n<tool_ca", "Well, \n<tool_ca", []),
    "text alone keeps its white space": Golden("  1 < 2 \n\n", "  1 < 2 \n\n", []),
    "a JSON object is text between no tags": Golden(
        '{"name": "clock", "arguments": {}}', '{"name": "clock", "arguments": {}}', []
    ),
    "text on both sides of a call": Golden(
        'One <tool_call>{"name": "clock"}</tool_call>\n two', "One\ntwo", [("clock", "{}")]
    ),
    "one call at most": Golden(
        '<tool_call>{"name": "clock"}</tool_call><tool_call>{"name": "clock"}</tool_call>text',
        "",
        [("clock", "{}")],
        form=ONE,
    ),
    "characters that would be frames": Golden("a\x1eb\x1fc\x1dd", "a\ufffdb\ufffdc\ufffdd", []),
    "llama": Golden(
        '{"name": "get_weather", "parameters": {"city": "Oslo"}}', "", [("get_weather", OSLO)], LLAMA3
    ),
    "llama, with a tag": Golden(
        '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Oslo"}}',
        "",
        [("get_weather", OSLO)],
        LLAMA3,
    ),
    "llama, with a type, and two calls": Golden(
        '{"type": "function", "name": "clock", "parameters": {}}; {"type": "function", "name": "get_weather",'
        ' "parameters": {"city": "Oslo"}}',
        "",
        [("clock", "{}"), ("get_weather", OSLO)],
        LLAMA3,
    ),
    "llama, another object": Golden('{"name": "clock"}', '{"name": "clock"}', [], LLAMA3),
    "llama, code": Golden("<|python_tag|>print(1)", "<|python_tag|>print(1)", [], LLAMA3),
    "llama, an object within text": Golden(
        'See {"name": "clock", "parameters": {}}', 'See {"name": "clock", "parameters": {}}', [], LLAMA3
    ),
    "guided": Golden(
        '{"name": "get_weather", "arguments": {"city": "Oslo"}}', "", [("get_weather", OSLO)], form=REQUIRED
    ),
    "guided, several": Golden(
        '[{"name": "clock", "arguments": {}}, {"name": "clock", "arguments": {"a": []}}]',
        "",
        [("clock", "{}"), ("clock", '{"a": []}')],
        form=REQUIRED,
    ),
    "in words, in a block of Markdown": Golden(
        '```json\n{"name": "clock", "arguments": {}}\n```', "", [("clock", "{}")], form=REQUIRED
    ),
    "in words, in the model's own form": Golden(
        '<tool_call>{"name": "clock"}</tool_call>', "", [("clock", "{}")], form=REQUIRED
    ),
}


def parsed(pieces: list[str], markup: ToolFormat, form: CallForm) -> str:
    parser = CallParser(form, markup)
    return "".join([*map(parser.push, pieces), parser.flush()])


@pytest.mark.parametrize("name", GOLDEN)
def test_an_answer_is_told_apart_the_same_however_it_is_split(name: str) -> None:
    golden = GOLDEN[name]
    said = golden.said
    whole = parsed([said], golden.markup, golden.form)
    text, calls = frames.unframed(whole)
    assert (text, [(each.name, each.arguments) for each in calls]) == (golden.text, golden.calls)
    for at in range(len(said) + 1):
        assert parsed([said[:at], said[at:]], golden.markup, golden.form) == whole
    assert parsed(list(said), golden.markup, golden.form) == whole
    assert frames.framed(text, calls) == whole, "what is stored gives the same stream"


PIECES = st.sampled_from(
    [
        "<tool_call>",
        "</tool_call>",
        "<|python_tag|>",
        '{"name": "clock", "arguments": ',
        '{"name": "clock", "parameters": ',
        '"get_weather"',
        '{"a": 1}',
        "}",
        "{",
        "[",
        ",",
        ";",
        '"',
        "\\",
        "\n",
        " ",
        "word",
        "\x1e",
        "null",
        "1e",
    ]
)


@given(
    pieces=st.lists(PIECES | st.text(max_size=3), max_size=24),
    markup=st.sampled_from([LLAMA3, HERMES]),
    form=st.sampled_from([AUTO, ONE, REQUIRED]),
)
def test_whatever_a_model_writes_is_told_apart_the_same_however_it_comes(
    pieces: list[str], markup: ToolFormat, form: CallForm
) -> None:
    whole = parsed(["".join(pieces)], markup, form)
    assert parsed(pieces, markup, form) == whole
    assert parsed(list("".join(pieces)), markup, form) == whole
    text, calls = frames.unframed(whole)
    assert frames.framed(text, calls) == whole
    assert all(each.name in NAMES for each in calls)
    assert not any(
        mark in each for mark in frames.MARKS for each in (text, *(call.arguments for call in calls))
    )


@given(said=st.text(alphabet="ab <{\n", max_size=30))
def test_an_answer_without_calls_stays_as_it_is(said: str) -> None:
    assert parsed([said], HERMES, AUTO) == said
    assert parsed([said], LLAMA3, AUTO) == said


def test_text_is_only_held_back_while_it_can_become_a_call() -> None:
    parser = CallParser(AUTO, HERMES)
    assert parser.push("Hello") == "Hello"
    assert parser.push(" <tool") == ""
    assert parser.push("box>") == " <toolbox>"
    assert parser.push('<tool_call>{"name": "clock", ') == ""
    assert parser.push('"arguments": {"a') == f'{frames.CALL}clock{frames.ARGUMENTS}{{"a'
    assert parser.push('": 1') == '": 1', "arguments go on as they come"


def test_what_may_be_a_call_is_held_back_for_a_bounded_length() -> None:
    parser = CallParser(AUTO, HERMES)
    assert len(parser.push('<tool_call>{"a": "' + "x" * 20_000)) > 0


@given(st.data())
def test_a_reader_goes_on_after_any_part_of_a_stream(data: st.DataObject) -> None:
    stream = parsed(
        ["Hi <tool_call>" + '{"name": "clock", "arguments": {"a": 1}}</tool_call> bye'], HERMES, AUTO
    )
    name = stream.index(frames.CALL), stream.index(frames.ARGUMENTS)
    places = [at for at in range(len(stream) + 1) if not name[0] < at <= name[1]]
    at = data.draw(st.sampled_from(places))
    first = FrameReader()
    before = first.push(stream[:at])
    after = FrameReader(index=first.index, is_in_call=first.is_in_call).push(stream[at:])
    whole = FrameReader().push(stream)
    for read in (text_of, arguments_of):
        assert read([*before, *after]) == read(whole)


def text_of(parts: list[TextPart | CallPart]) -> str:
    return "".join(each.text for each in parts if isinstance(each, TextPart))


def arguments_of(parts: list[TextPart | CallPart]) -> list[tuple[int, str]]:
    return [
        (each.index, "".join(p.arguments for p in parts if isinstance(p, CallPart) and p.index == each.index))
        for each in parts
        if isinstance(each, CallPart) and each.name is not None
    ]
