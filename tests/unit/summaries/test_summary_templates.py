"""Prompts of summaries: material stays material, options reach every part, and chunks share a beginning."""

from hypothesis import given
from hypothesis import strategies as st

from jobs.prompts.delimiters import delimiters
from jobs.prompts.messages import Message
from jobs.states.summary import Style
from jobs.summaries.templates import TEMPLATE_VERSIONS, PromptOptions, chunk, join, whole

OPTIONS = PromptOptions(
    style=Style.BULLETS, length=200, language="German", focus="prices", instructions="Call us Acme."
)
TAGS = st.sampled_from(["<document>", "</document>", "</document-2>", "</document-3>", "text ", "\n"])


def prompts(text: str, options: PromptOptions = OPTIONS) -> list[list[Message]]:
    marks = delimiters([text])
    return [
        whole(text, options, marks),
        chunk(text, options, marks, number=2, num_chunks=9, length=100),
        join([text, "other"], options, delimiters([text, "other"]), length=None),
        join([text, "other"], options, delimiters([text, "other"]), length=100),
    ]


@given(st.lists(TAGS, max_size=20).map("".join))
def test_no_text_can_end_its_own_frame(text: str) -> None:
    marks = delimiters([text])
    assert marks.closing not in text
    for _, message in prompts(text):
        assert f"\n{text}\n{marks.closing}" in message.content
        assert message.content.count(marks.closing) in {1, 2}


def test_every_wish_reaches_every_prompt() -> None:
    for system, _ in prompts("a text"):
        assert "Write in German." in system.content
        assert "prices" in system.content
        assert "Call us Acme." in system.content


def test_only_final_prompts_ask_for_the_style() -> None:
    asked = ['"- "' in system.content for system, _ in prompts("a text")]
    assert asked == [True, False, True, False]


def test_chunks_share_their_prompts_up_to_the_text() -> None:
    first = chunk("one", OPTIONS, delimiters(["one two"]), number=1, num_chunks=2, length=100)
    second = chunk("two", OPTIONS, delimiters(["one two"]), number=2, num_chunks=2, length=100)
    assert first[0] == second[0]
    assert first[1].content.index("one") == second[1].content.index("two")


def test_nothing_of_a_document_stands_outside_its_frame() -> None:
    for system, message in prompts("SECRET"):
        marks = delimiters(["SECRET"])
        assert "SECRET" not in system.content
        assert "SECRET" not in message.content[message.content.rindex(marks.closing) :]


def test_templates_are_named_with_their_versions() -> None:
    assert {kind.value: name.rsplit("-", 1)[0] for kind, name in TEMPLATE_VERSIONS.items()} == {
        "whole": "whole",
        "map": "map",
        "reduce": "reduce",
    }
