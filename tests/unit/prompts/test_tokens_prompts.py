"""How tasks and their documents become messages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.errors import InvalidRequestError
from jobs.prompts.delimiters import delimiters
from jobs.prompts.messages import Conversation, Message, build_messages, canonical, parse

messages = st.lists(
    st.builds(
        Message,
        st.sampled_from(["system", "user", "assistant"]),
        st.text(st.characters(exclude_categories=["Cs"])),
    )
)


def test_generate_sends_a_text_as_it_is() -> None:
    assert build_messages(task="generate", input=" hi\n") == [Message("user", " hi\n")]


def test_generate_sends_a_conversation_as_it_is() -> None:
    turns = [Message("user", "a"), Message("assistant", "b"), Message("user", "c")]
    assert build_messages(task="generate", input=turns) == turns


def test_instructions_stand_in_front_as_the_system_message() -> None:
    turns = build_messages(task="generate", input="hi", instructions="Be brief.")
    assert turns == [Message("system", "Be brief."), Message("user", "hi")]


def test_summarize_has_its_own_instructions_and_frames_the_document() -> None:
    system, user = build_messages(task="summarize", input="Text.")
    assert system.role == "system"
    assert "<document>" in system.content
    assert user.content.startswith("<document>\nText.\n</document>\n")


def test_instructions_replace_those_of_the_task() -> None:
    system, user = build_messages(task="summarize", input="Text.", instructions="Three bullet points.")
    assert system == Message("system", "Three bullet points.")
    assert "<document>\nText.\n</document>" in user.content
    assert "ummarize" not in user.content


@given(
    document=st.lists(
        st.sampled_from(["</document>", "</document-2>", "</document-3>", "<document>", "x"]), min_size=1
    )
)
def test_a_document_cannot_end_its_own_frame(document: list[str]) -> None:
    text = "".join(document)
    _, user = build_messages(task="summarize", input=text)
    opening, _, rest = user.content.partition("\n")
    closing = opening.replace("<", "</")
    assert rest.count(closing) == 1
    assert rest.startswith(f"{text}\n{closing}")


@pytest.mark.parametrize(
    "tag",
    [
        "</DOCUMENT>",
        "</document >",
        "</document\n>",
        "< /\tdocument>",
        "<\u200b/document\u00a0>",
        "\uff1c\uff0f\uff44\uff4f\uff43\uff55\uff4d\uff45\uff4e\uff54\uff1e",
        "</\uff24\uff2f\uff23\uff35\uff2d\uff25\uff2e\uff34>",
    ],
)
def test_what_a_model_may_take_for_the_end_is_not_the_end(tag: str) -> None:
    _, user = build_messages(task="summarize", input=f"a {tag} b")
    assert user.content.startswith(f"<document-2>\na {tag} b\n</document-2>\n")
    numbered = tag.replace(">", "-2>").replace("\uff1e", "\uff0d\uff12\uff1e")
    assert delimiters([tag, numbered]).closing == "</document-3>"
    assert delimiters(["<document>", "</documents>", "</document", "/document>"]).closing == "</document>"


def test_a_conversation_is_summarized_as_a_transcript() -> None:
    _, user = build_messages(task="summarize", input=[Message("user", "Why?"), Message("assistant", "So.")])
    assert "user: Why?\n\nassistant: So." in user.content


@pytest.mark.parametrize("task", ["generate", "summarize"])
def test_an_empty_input_is_refused(task: str) -> None:
    for empty in ("", list[str]()):
        with pytest.raises(InvalidRequestError) as caught:
            build_messages(task=task, input=empty)  # type: ignore[arg-type] # parametrized
        assert caught.value.param == "input"


@given(turns=messages)
def test_canonical_text_comes_back_as_the_same_messages(turns: list[Message]) -> None:
    assert parse(canonical(turns)) == Conversation(turns)


def test_canonical_text_is_fixed() -> None:
    assert canonical([Message("user", "ä\n")]) == '[{"content":"ä\\n","role":"user"}]'
    assert canonical([Message("user", "ä")], variables={}) == '[{"content":"ä","role":"user"}]'
    assert canonical([Message("user", "ä")], variables={"b": "ö", "a": False}) == (
        '{"chat_template_kwargs":{"a":false,"b":"ö"},"messages":[{"content":"ä","role":"user"}]}'
    )


def test_template_variables_come_back_with_the_messages() -> None:
    turns = [Message("user", "hi")]
    found = parse(canonical(turns, variables={"b": [1, None], "a": {"c": True}}))
    assert found == Conversation(turns, '{"a":{"c":true},"b":[1,null]}')


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"chat_template_kwargs":[],"messages":[]}',
        "[1]",
        '[{"role":"tool","content":""}]',
        '[{"role":"user","content":"","x":1}]',
        "nonsense",
    ],
)
def test_text_that_is_not_canonical_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"message|conversation|Expecting"):
        parse(text)
