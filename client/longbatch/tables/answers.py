"""What documents say to questions, as rows of a table."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from longbatch.tables.cells import csv_line
from longbatch.tables.findings import (
    shown_failure,
    shown_gaps,
    shown_pages,
    shown_quote,
    shown_warnings,
)

_COLUMNS: Final = ("document", "question", "answer", "pages", "quote", "warnings")
_NOT_IN_DOCUMENT: Final = "not in the document"


def header() -> str:
    """Write the line with the columns' names."""
    return csv_line(_COLUMNS)


def answer_lines(
    document: str, answers: Sequence[Mapping[str, Any]], warnings: Sequence[Mapping[str, Any]]
) -> str:
    """Write a line for each answer of a document, as `AnswerReply` has it, with the document's warnings."""
    warned = shown_warnings(warnings)
    return "".join(
        csv_line(
            (document, each["question"], _answer(each), shown_pages(each["pages"]), _quote(each), warned)
        )
        for each in answers
    )


def unanswered_lines(document: str, questions: Sequence[str], why: str) -> str:
    """Write a line for each question to a document that has no answers."""
    return "".join(csv_line((document, question, why, "", "", "")) for question in questions)


def _answer(each: Mapping[str, Any]) -> str:
    if each["error"] is not None:
        return shown_failure(each["error"])
    answer = each["answer"] if each["found"] else _NOT_IN_DOCUMENT
    return f"{answer} [not asked: {shown_gaps(each['gaps'])}]" if each["gaps"] else str(answer)


def _quote(each: Mapping[str, Any]) -> str:
    return shown_quote(each["quote"], in_text=each["quote_in_text"])
