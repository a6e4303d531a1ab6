"""What documents say to questions, as rows of a table."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from jobs.tables.cells import csv_line

COLUMNS: Final = ("document", "question", "answer", "pages", "quote")
NOT_IN_DOCUMENT: Final = "not in the document"
_NOT_IN_TEXT: Final = "[not in the text] "


def header() -> str:
    """Write the line with the columns' names."""
    return csv_line(COLUMNS)


def answer_lines(document: str, answers: Sequence[Mapping[str, Any]]) -> str:
    """Write a line for each answer of a document, as `AnswerReply` has it."""
    return "".join(
        csv_line((document, each["question"], _answer(each), pages_of(each["pages"]), _quote(each)))
        for each in answers
    )


def unanswered_lines(document: str, questions: Sequence[str], why: str) -> str:
    """Write a line for each question to a document that has no answers."""
    return "".join(csv_line((document, question, why, "", "")) for question in questions)


def failure(error: Mapping[str, object]) -> str:
    """Write an error as a cell."""
    return f"[failed] {error['message']} ({error['code']})"


def pages_of(pages: Sequence[int] | None) -> str:
    """Write first and last page; nothing where there are no pages."""
    if pages is None:
        return ""
    first, last = pages
    return str(first) if first == last else f"{first}-{last}"


def _answer(each: Mapping[str, Any]) -> str:
    if each["error"] is not None:
        return failure(each["error"])
    answer = each["answer"] if each["found"] else NOT_IN_DOCUMENT
    if not each["gaps"]:
        return str(answer)
    parts = ", ".join(
        f"pages {pages_of(gap['pages'])}" if gap["pages"] else f"characters {gap['start']}-{gap['end']}"
        for gap in each["gaps"]
    )
    return f"{answer} [not asked: {parts}]"


def _quote(each: Mapping[str, Any]) -> str:
    return f"{'' if each['quote_in_text'] else _NOT_IN_TEXT}{each['quote']}" if each["quote"] else ""
