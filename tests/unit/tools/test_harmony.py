"""Answers in channels: golden transcripts, each split everywhere, and whatever a model may write."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.live_output import OutputPiece
from jobs.prompts.tools import frames
from jobs.prompts.tools.harmony import HarmonySplitter

NAMES = ("get_weather", "clock")
CALL = "<|channel|>commentary to=functions.clock <|constrain|>json<|message|>"
GOLDEN = {
    "text alone": ("<|channel|>final<|message|>Hello.", "", "Hello.", []),
    "thinking and text": (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hello.",
        "Hm.",
        "Hello.",
        [],
    ),
    "thinking and a call": (
        f'<|channel|>analysis<|message|>Ask.<|end|><|start|>assistant{CALL}{{"a": 1}}',
        "Ask.",
        "",
        [("clock", '{"a": 1}')],
    ),
    "the recipient first": (
        " to=functions.get_weather<|channel|>commentary json<|message|>{}",
        "",
        "",
        [("get_weather", "{}")],
    ),
    "a preamble": (
        f"<|channel|>commentary<|message|>Wait.<|end|><|start|>assistant{CALL}{{}}",
        "",
        "Wait.",
        [("clock", "{}")],
    ),
    "two thoughts": (
        "<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>analysis<|message|>B<|end|>",
        "A\n\nB",
        "",
        [],
    ),
    "a function that there is not": (
        "<|channel|>commentary to=functions.rm<|message|>{}<|end|>",
        "",
        "{}",
        [],
    ),
    "another tool": ("<|channel|>commentary to=python<|message|>1+1", "", "1+1", []),
    "cut in the thinking": ("<|channel|>analysis<|message|>Hm", "Hm", "", []),
    "cut in a header": ("<|channel|>analysis<|message|>Hm<|end|><|start|>assis", "Hm", "", []),
    "cut in the arguments": (f'{CALL}{{"a', "", "", [("clock", '{"a')]),
    "no channels": ("Hello <|end|> there", "", "Hello ", []),
    "characters that would be frames": (f'{CALL}{{"\x1e": 1}}', "", "", [("clock", '{"\\u001e": 1}')]),
    "text after a call": (
        f"{CALL}{{}}<|call|><|start|>assistant<|channel|>final<|message|>Done.",
        "",
        "Done.",
        [("clock", "{}")],
    ),
}


def split(pieces: list[str]) -> OutputPiece:
    splitter = HarmonySplitter(NAMES)
    whole = OutputPiece("", "")
    for each in [*map(splitter.push, pieces), splitter.flush()]:
        whole = OutputPiece(whole.reasoning + each.reasoning, whole.text + each.text)
    return whole


@pytest.mark.parametrize("name", GOLDEN)
def test_an_answer_is_split_the_same_however_it_comes(name: str) -> None:
    said, thought, text, calls = GOLDEN[name]
    whole = split([said])
    visible, made = frames.unframed(whole.text)
    assert (whole.reasoning, visible) == (thought, text)
    assert [(each.name, each.arguments) for each in made] == calls
    for at in range(len(said) + 1):
        assert split([said[:at], said[at:]]) == whole
    assert split(list(said)) == whole


TAGS = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "assistant", "analysis", "final"]


@given(
    st.lists(st.sampled_from([*TAGS, "commentary", " to=functions.clock", "{", '"']) | st.text(max_size=2))
)
def test_whatever_a_model_writes_is_split_the_same_however_it_comes(pieces: list[str]) -> None:
    whole = split(["".join(pieces)])
    assert split(pieces) == whole
    assert split(list("".join(pieces))) == whole
    assert all(each.name in NAMES for each in frames.unframed(whole.text)[1])
