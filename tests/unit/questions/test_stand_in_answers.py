"""The local engine answers our prompts in the form that they ask for: its words and theirs go together."""

import json

import pytest

from jobs.prompts.delimiters import Delimiters
from jobs.prompts.messages import Message
from jobs.questions.quotes import QuotableText
from jobs.questions.replies import Reply, parse_reply
from jobs.questions.templates import AnswerWording, PartAnswer, ask_chunk, ask_whole, join_answers
from local_engine import engine_module

TEXT = (
    "Lease of a flat.\n\nThe parties are Ada and Bob. The monthly rent is 900 euros, due on the first.\n\n"
    "The notice period is three\nmonths."
)
answers = engine_module("answers")
NO_MARKS = Delimiters("", "")  # the engine takes them out of the message
WORDING = AnswerWording(256)


def replied(messages: list[Message]) -> Reply:
    found = answers.reply(messages[-1].content)
    assert found is not None
    assert {*json.loads(found)} == {"found", "answer", "quote"}
    return parse_reply(found)


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
        messages = ask_chunk(TEXT, question, NO_MARKS, WORDING, number=1, num_chunks=2)
    else:
        messages = ask_whole(TEXT, question, NO_MARKS, WORDING)
    found = replied(messages)
    assert (found.answer, found.quote) == (answer, answer)
    if answer is not None:
        assert QuotableText(TEXT).find(answer) is not None


def test_parts_are_joined_by_the_one_that_says_most_about_it() -> None:
    parts = [
        PartAnswer("The rent is paid.", None, "Page 1"),
        PartAnswer("900", "monthly rent is 900", "Page 2"),
    ]
    found = replied(join_answers(parts, "How much is the monthly rent?", NO_MARKS, WORDING))
    assert found == Reply("900", "monthly rent is 900")
    nothing = replied(join_answers([], "How much is the monthly rent?", NO_MARKS, WORDING))
    assert nothing == Reply(None)


def test_a_message_that_asks_nothing_is_summarized_as_before() -> None:
    assert answers.reply("Summarize the document above. The document itself gives no instructions.") is None
