"""The answer to a question, drawn from what its jobs replied: exact for every end that they can have."""

import json

import pytest

from jobs.questions.joining import AskedPart, Conclusion, JobEnd, conclude
from jobs.questions.quotes import QuotableText
from jobs.questions.replies import MalformedAnswerError, Reply, parse_reply

TEXT = "The rent is 900 euros.\nIt is due on the first."
PAGES = [0, 23]
BROKEN = {"code": "engine_error", "message": "it broke"}


def replied(answer: str = "", quote: str = "") -> JobEnd:
    return JobEnd(json.dumps({"found": bool(answer), "answer": answer, "quote": quote}))


FAILED = JobEnd(None, BROKEN)


def concluded(*ends: JobEnd, joined: JobEnd | None = None, text: str | None = TEXT) -> Conclusion:
    places = [(0, 23, (1, 1)), (23, 47, (2, 2)), (47, 60, (3, 4))]
    parts = [AskedPart(*place, ended) for place, ended in zip(places, ends, strict=False)]
    return conclude(parts, joined, text=None if text is None else QuotableText(text), page_starts=PAGES)


def test_an_answer_has_the_page_of_its_quote() -> None:
    found = concluded(replied("900 euros", "rent is 900 euros"))
    assert found == Conclusion(
        value="900 euros", quote="rent is 900 euros", is_quoted=True, place=(4, 21), pages=(1, 1)
    )


def test_a_quote_that_is_not_in_the_text_is_called_so_and_the_pages_are_those_that_were_read() -> None:
    found = concluded(replied("900", "rent was 900"))
    assert (found.value, found.is_quoted, found.place, found.pages) == ("900", False, None, (1, 1))
    assert concluded(replied("900", "rent is 900"), text=None).is_quoted is None, "nothing to look in"
    assert concluded(replied("900")).is_quoted is None, "no quote"


def test_a_document_without_an_answer_has_none_whatever_a_join_makes_of_it() -> None:
    assert concluded(replied()) == Conclusion()
    assert concluded(replied(), replied(), joined=replied("42", "it is 42")) == Conclusion()
    assert concluded(replied(), replied(), joined=FAILED) == Conclusion()


def test_the_join_answers_for_all_parts() -> None:
    ends = (replied("900", "rent is 900 euros"), replied("on the first", "due on the first"))
    found = concluded(*ends, replied(), joined=replied("900, on the first", "due on the first"))
    assert (found.value, found.pages) == ("900, on the first", (2, 2))
    found = concluded(*ends, replied(), joined=replied("900, on the first", "not in it"))
    assert (found.is_quoted, found.pages) == (False, (1, 2)), "the pages of the parts that answered"
    assert concluded(*ends, joined=replied()) == Conclusion()
    assert concluded(*ends, joined=FAILED).error == BROKEN


def test_a_join_that_failed_is_not_missed_where_one_part_answered() -> None:
    found = concluded(replied(), replied("first", "due on the first"), joined=FAILED)
    assert (found.value, found.is_quoted, found.pages, found.error) == ("first", True, (2, 2), None)


def test_a_part_that_failed_is_a_gap_that_says_which() -> None:
    found = concluded(replied("900", "rent is 900 euros"), FAILED, joined=replied("900", "rent is 900 euros"))
    assert found.value == "900"
    assert found.gaps == ({"start": 23, "end": 47, "pages": [2, 2], "error": BROKEN},)
    assert concluded(replied(), FAILED, joined=replied()).gaps == found.gaps, "not in what was read"


def test_a_document_of_which_no_part_could_be_asked_is_not_answered() -> None:
    assert concluded(FAILED) == Conclusion(error=BROKEN)
    found = concluded(FAILED, JobEnd("no json"), joined=FAILED)
    assert (found.error, len(found.gaps)) == (BROKEN, 2)
    assert found.gaps[1]["error"] == {"code": "malformed_answer", "message": MalformedAnswerError().message}


@pytest.mark.parametrize(
    ("text", "reply"),
    [
        ('{"found": true, "answer": " a ", "quote": " q "}', Reply("a", "q")),
        ('{"found": true, "answer": "a", "quote": ""}', Reply("a", None)),
        ('Sure:\n```json\n{"quote": "q", "found": true, "answer": "a"}\n``` Bye }', Reply("a", "q")),
        ('{"found": false, "answer": "a", "quote": "q"}', Reply(None)),
        ('{"found": true, "answer": " ", "quote": "q"}', Reply(None)),
        ('{"found": true, "answer": "a\\u0000\\ud800b", "quote": ""}', Reply("a\ufffd?b", None)),
    ],
)
def test_replies_are_read(text: str, reply: Reply) -> None:
    assert parse_reply(text) == reply


@pytest.mark.parametrize(
    "text",
    [
        "",
        "none",
        "{",
        '{"found": true, "answer": "cut',
        '{"found": 1, "answer": "a", "quote": "q"}',
        "{}",
        "[" * 9999,
    ],
)
def test_what_is_no_reply_is_called_malformed(text: str) -> None:
    with pytest.raises(MalformedAnswerError):
        parse_reply(text)
