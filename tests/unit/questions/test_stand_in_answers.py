"""The local engine answers our prompts in the form that they ask for: its words and theirs go together."""

import json
from dataclasses import replace

import pytest

from jobs.prompts.delimiters import delimiters
from jobs.prompts.messages import Message, build_messages
from jobs.questions.quotes import QuotableText
from jobs.questions.replies import Reply, parse_reply
from jobs.questions.templates import AnswerWording, PartAnswer, ask_chunk, ask_whole, join_answers
from local_engine import engine_module

TEXT = (
    "Lease of a flat.\n\nThe parties are Ada and Bob. The monthly rent is 900 euros, due on the first.\n\n"
    "The notice period is three\nmonths."
)
answers = engine_module("answers")
documents = engine_module("documents")
MARKS = delimiters([TEXT])
WORDING = AnswerWording(256)


def replied(messages: list[Message]) -> Reply:
    """Parse the reply; an answer has the mark in front of it, and is returned without it."""
    found = answers.reply(documents.Asked.of(messages[-1].content))
    assert found is not None
    assert {*json.loads(found)} == {"found", "answer", "quote"}
    reply = parse_reply(found)
    if reply.answer is None:
        return reply
    assert reply.answer.startswith(f"{documents.MARK} ")
    return replace(reply, answer=reply.answer.removeprefix(f"{documents.MARK} "))


@pytest.mark.parametrize("is_part", [False, True])
@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("How much is the monthly rent?", "The monthly rent is 900 euros, due on the first."),
        ("What is the notice period?", "The notice period is three months."),
        ("Which animals may live there?", None),
    ],
)
def test_the_sentence_with_the_words_of_the_question_is_the_answer(
    question: str, answer: str | None, *, is_part: bool
) -> None:
    if is_part:
        messages = ask_chunk(TEXT, question, MARKS, WORDING, number=1, num_chunks=2)
    else:
        messages = ask_whole(TEXT, question, MARKS, WORDING)
    found = replied(messages)
    assert (found.answer, found.quote) == (answer, answer)
    if answer is not None:
        assert QuotableText(TEXT).find(answer) is not None


def test_parts_are_joined_by_the_one_that_says_most_about_it() -> None:
    parts = [
        PartAnswer("The rent is paid.", None, "Page 1"),
        PartAnswer("900", "monthly rent is 900", "Page 2"),
    ]
    found = replied(join_answers(parts, "How much is the monthly rent?", MARKS, WORDING))
    assert found == Reply("900", "monthly rent is 900")
    nothing = replied(join_answers([], "How much is the monthly rent?", MARKS, WORDING))
    assert nothing == Reply(None)


def test_an_answer_that_joins_marked_ones_has_one_mark() -> None:
    parts = [PartAnswer(f"{documents.MARK} The monthly rent is 900.", "rent is 900", "Page 2")]
    found = replied(join_answers(parts, "How much is the monthly rent?", MARKS, WORDING))
    assert found == Reply("The monthly rent is 900.", "rent is 900")


def test_a_message_that_asks_nothing_is_left_to_others() -> None:
    asked = documents.Asked.of(build_messages(task="summarize", input=TEXT)[-1].content)
    assert answers.reply(asked) is None
