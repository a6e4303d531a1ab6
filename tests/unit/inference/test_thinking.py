"""Thinking is kept apart from visible text, and where an answer is cut changes nothing."""

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.checkpoints import Output
from jobs.ids import uuid7
from jobs.live_output import Delta, OutputPiece, decode, encode
from jobs.prompts.messages import Message
from jobs.prompts.thinking import ThinkingTags
from jobs.prompts.tokenizer import Tokenizer
from jobs.states import FinishReason
from reasoning_support import BEGIN, BEGIN_ID, END, END_ID, TEMPLATE, thinking_tokenizer
from worker.engine.deltas import TextDelta
from worker.inference.answer import Answer
from worker.inference.live_output import OutputPublisher
from worker.inference.text_answer import TextAnswer
from worker.inference.thinking import ThinkingSplitter

TAGS = ThinkingTags(BEGIN, END, {BEGIN_ID: BEGIN, END_ID: END})
# Everything that the splitter must hold back, or must not take for a tag.
texts = st.lists(
    st.sampled_from([BEGIN, END, "<", "</", "think", ">", "</thi", "\n", "\r\n", " ", "so", "STOP", "日本"])
).map("".join)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return thinking_tokenizer(tmp_path_factory.mktemp("thinking"))


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> Tokenizer:
    return Tokenizer.load(str(directory))


def expected(text: str, *, is_open: bool) -> OutputPiece:
    """Split a whole text: the rule, without any streaming."""
    begun = text.lstrip()
    if begun.startswith(BEGIN):
        inside = begun.removeprefix(BEGIN)
    elif is_open:
        # Only white space, or a part of a tag that may only be written again, is thinking like all else.
        inside = text
    else:
        return OutputPiece("", text)
    thought, _, visible = inside.partition(END)
    return OutputPiece(thought.strip("\r\n"), visible.lstrip("\r\n"))


def split(pieces: list[str], *, is_open: bool) -> OutputPiece:
    splitter = ThinkingSplitter(TAGS, is_open=is_open)
    found = [splitter.push(piece) for piece in pieces]
    assert all(not later.reasoning for piece, later in itertools.pairwise(found) if piece.text), "in order"
    found.append(splitter.flush())
    return OutputPiece("".join(each.reasoning for each in found), "".join(each.text for each in found))


@pytest.mark.parametrize("is_open", [True, False])
@given(text=texts, cuts=st.lists(st.integers(0, 60), max_size=8))
def test_any_cutting_of_a_text_gives_the_same_thinking_and_the_same_text(
    *, is_open: bool, text: str, cuts: list[int]
) -> None:
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in itertools.pairwise(bounds)]
    assert split(pieces, is_open=is_open) == expected(text, is_open=is_open)


@pytest.mark.parametrize(
    ("text", "is_open", "reasoning", "visible"),
    [
        (f"{BEGIN}\nSo it is.\n{END}\n\nYes.", False, "So it is.", "Yes."),
        (f"\n{BEGIN}So{END}\n    code", False, "So", "    code"),
        (f"So it is.\n{END}\n\nYes.", True, "So it is.", "Yes."),
        (f"{BEGIN}\nagain\n{END}Yes.", True, "again", "Yes."),
        ("Cut while it thou", True, "Cut while it thou", ""),
        (f"{BEGIN}{END}\n\nYes.", False, "", "Yes."),
        (f"I explain {BEGIN} and {END}.", False, "", f"I explain {BEGIN} and {END}."),
        (f"{BEGIN}a{END}b {BEGIN}c{END}", False, "a", f"b {BEGIN}c{END}"),
    ],
)
def test_thinking_is_what_stands_between_the_tags_at_the_beginning(
    *, text: str, is_open: bool, reasoning: str, visible: str
) -> None:
    assert split([text], is_open=is_open) == OutputPiece(reasoning, visible)


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    """Encode a text as a model writes it: its tags are single tokens."""
    return tokenizer.markup.read(text).tolist()


THOUGHT = "One 日本語, STOP, two 🙂.\n\n</thi"
ANSWER = "Visible 🙂 text. STOP and more."
WHOLE = f"{BEGIN}\n{THOUGHT}\n{END}\n\n{ANSWER}"


def told(tokenizer: Tokenizer, runs: list[list[int]], *, max_tokens: int = 1000) -> tuple[Output, str, str]:
    """The answer of a job that these runs generated, and what a live reader has read of it."""
    deltas: list[Delta] = []
    taken: list[int] = []
    assert tokenizer.thinking is not None
    for place, run in enumerate(runs):
        answer = Answer(tokenizer, max_tokens=max_tokens, stops=["STOP"])
        answer.split_thinking(tokenizer.thinking, is_open=False)
        publisher = OutputPublisher(
            lambda _, delta: deltas.append(
                decode({k.encode(): str(v).encode() for k, v in encode(delta).items()})
            ),
            uuid7(),
            answer,
            interval=0,
        )
        answer.resume(taken)
        for token_id in run:
            answer.push([token_id])
            publisher.publish()
        taken = [*taken, *run][: answer.num_tokens]
        publisher.collect()
        output = answer.output()
        publisher.end(is_final=place == len(runs) - 1 or answer.finish_reason is not None)
    reasoning, text = "", ""
    for delta in deltas:
        new = delta.after(len(reasoning) + len(text))
        assert not (text and new.reasoning)
        reasoning, text = reasoning + new.reasoning, text + new.text
    return output, reasoning, text


@given(data=st.data())
def test_a_job_cut_into_any_segments_has_one_split_and_live_readers_see_it(
    tokenizer: Tokenizer, data: st.DataObject
) -> None:
    ids = ids_of(tokenizer, WHOLE)
    max_tokens = data.draw(st.integers(1, len(ids) + 3))
    bounds = [0, *sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=4))), len(ids)]
    runs = [ids[start:end] for start, end in itertools.pairwise(bounds)]
    whole, _, _ = told(tokenizer, [ids], max_tokens=max_tokens)
    output, reasoning, text = told(tokenizer, runs, max_tokens=max_tokens)
    assert output == whole
    assert (reasoning, text) == (output.reasoning, output.text)


def test_a_stop_string_ends_visible_text_and_not_thinking(tokenizer: Tokenizer) -> None:
    output, _, _ = told(tokenizer, [ids_of(tokenizer, WHOLE)])
    assert output.reasoning == THOUGHT
    assert output.text == "Visible 🙂 text. "
    assert output.num_tokens == len(ids_of(tokenizer, WHOLE.partition("STOP and")[0] + "STOP"))
    assert output.reasoning_tokens == ids_of(tokenizer, WHOLE).index(END_ID) + 1


def test_an_answer_of_thinking_alone_is_empty_and_ends_by_length(tokenizer: Tokenizer) -> None:
    assert tokenizer.thinking is not None
    answer = Answer(tokenizer, max_tokens=12, stops=["STOP"])
    answer.split_thinking(tokenizer.thinking, is_open=False)
    answer.push(ids_of(tokenizer, WHOLE))
    output = answer.output()
    assert (output.text, answer.finish_reason) == ("", FinishReason.LENGTH)
    assert output.reasoning
    assert (output.num_tokens, output.reasoning_tokens) == (12, 12)


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("is_whole", [True, False])
def test_an_answer_that_comes_as_text_is_split_too(
    tokenizer: Tokenizer, *, size: int, is_whole: bool
) -> None:
    assert tokenizer.thinking is not None
    answer = TextAnswer(tokenizer, max_tokens=1000, stops=["STOP"])
    answer.split_thinking(tokenizer.thinking, is_open=True)
    text = WHOLE.removeprefix(f"{BEGIN}\n")
    for start in range(0, len(text), size):
        begin = 0 if is_whole else start
        answer.take(TextDelta(text[begin : start + size], is_whole=is_whole))
    output = answer.output()
    assert (output.reasoning, output.text) == (THOUGHT, "Visible 🙂 text. ")
    assert answer.finish_reason is FinishReason.STOP
    assert 0 < output.reasoning_tokens < output.num_tokens


def test_special_tags_split_token_ids_and_leave_text_as_the_server_decodes_it(tmp_path: Path) -> None:
    template = TEMPLATE.replace("<think>", "[THINK]").replace("</think>", "[/THINK]")
    directory = thinking_tokenizer(tmp_path, template=template, tags=("[THINK]", "[/THINK]"), special=True)
    tokenizer = Tokenizer.load(str(directory))
    assert tokenizer.thinking is not None
    assert tokenizer.thinking.are_hidden
    answer = Answer(tokenizer, max_tokens=100)
    answer.split_thinking(tokenizer.thinking, is_open=False)
    answer.push([BEGIN_ID, *tokenizer.encode_text("a"), END_ID, *tokenizer.encode_text("b")])
    output = answer.output()
    assert (output.reasoning, output.text, output.reasoning_tokens) == ("a", "b", 3)
    text = TextAnswer(tokenizer, max_tokens=100, stops=["c"])
    text.split_thinking(tokenizer.thinking, is_open=True)
    text.take(TextDelta("ab"))
    assert not text.has_own_stops
    assert text.output().text == "ab"


@pytest.mark.parametrize(
    ("variables", "is_open"),
    [("", False), ('{"opens":true}', True), ('{"enable_thinking":false}', False)],
)
def test_whether_an_answer_begins_inside_thinking_is_read_from_its_prompt(
    tokenizer: Tokenizer, *, variables: str, is_open: bool
) -> None:
    prompt = tokenizer.encode_messages([Message("user", f"{BEGIN} {BEGIN}")], variables=variables)
    assert tokenizer.opens_thinking(prompt) == is_open


def test_tags_of_several_tokens_are_found_in_the_template(tmp_path: Path) -> None:
    template = TEMPLATE.replace("think>", "thought>")
    tokenizer = Tokenizer.load(str(thinking_tokenizer(tmp_path, template=template, tags=("[a]", "[b]"))))
    assert tokenizer.thinking == ThinkingTags("<thought>", "</thought>", {})
    for variables, is_open in (("", False), ('{"opens":true}', True), ('{"enable_thinking":false}', False)):
        prompt = tokenizer.encode_messages([Message("user", "hi")], variables=variables)
        assert tokenizer.opens_thinking(prompt) == is_open


def test_a_model_without_tags_does_not_think() -> None:
    tokenizer = Tokenizer.load()
    assert tokenizer.thinking is None
    assert not tokenizer.opens_thinking(tokenizer.encode_messages([Message("user", BEGIN)]))
