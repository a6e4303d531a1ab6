"""The answers of a document as rows of a table: CSV or JSON."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import Any, Final, TextIO

from cli.summaries.results import DocumentResult, csv_line
from cli.summaries.tables import (
    JsonSheet,
    Sheet,
    TextSheet,
    shown_failure,
    shown_gaps,
    shown_pages,
    shown_quote,
)

_COLUMNS: Final = ("document", "question", "answer", "pages", "quote")
NOT_IN_DOCUMENT: Final = "not in the document"


class TableFormat(StrEnum):
    """File format of answers."""

    CSV = "csv"
    JSON = "json"


def answers_sheet(out: TextIO, kind: TableFormat, questions: Sequence[str]) -> Sheet:
    """Begin a table of the answers to these questions."""
    if kind is TableFormat.JSON:
        return JsonSheet(out, as_object)
    return TextSheet(out, partial(rows, questions=questions), heading=csv_line(_COLUMNS))


def problem_of(result: DocumentResult) -> str | None:
    """Say how many questions failed; None: each was answered, or found to have no answer."""
    num_failed = sum(each["error"] is not None for each in result.answers)
    return f"{num_failed} of {len(result.answers)} questions failed" if num_failed else None


def as_object(result: DocumentResult) -> dict[str, object]:
    """Convert the answers of a document to a JSON object."""
    return {
        "document": result.source.shown,
        "answers": list(result.answers),
        "usage": result.usage,
        "error": result.error,
    }


def rows(result: DocumentResult, questions: Sequence[str]) -> str:
    """Write a row for each question, also of a document that failed."""
    name = result.source.shown
    if result.error is not None:
        failed = shown_failure(result.error)
        return "".join(csv_line((name, question, failed, "", "")) for question in questions)
    return "".join(
        csv_line((name, each["question"], _answer(each), shown_pages(each["pages"]), _quote(each)))
        for each in result.answers
    )


def _answer(each: Mapping[str, Any]) -> str:
    if each["error"] is not None:
        return shown_failure(each["error"])
    answer = each["answer"] if each["found"] else NOT_IN_DOCUMENT
    return f"{answer} [not asked: {shown_gaps(each['gaps'])}]" if each["gaps"] else str(answer)


def _quote(each: Mapping[str, Any]) -> str:
    return shown_quote(each["quote"], in_text=each["quote_in_text"])
