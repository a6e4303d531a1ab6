"""The answers of a document as rows of a table: CSV or JSON."""

from collections.abc import Sequence
from functools import partial
from typing import TextIO

from longbatch.backports import StrEnum
from longbatch.cli.tables import JsonSheet, Sheet, TextSheet
from longbatch.documents.results import DocumentResult
from longbatch.tables import answers
from longbatch.tables.findings import shown_failure


class TableFormat(StrEnum):
    """File format of answers."""

    CSV = "csv"
    JSON = "json"


def answers_sheet(out: TextIO, kind: TableFormat, questions: Sequence[str]) -> Sheet:
    """Begin a table of the answers to these questions."""
    if kind is TableFormat.JSON:
        return JsonSheet(out, as_object)
    return TextSheet(out, partial(rows, questions=questions), heading=answers.header())


def problem_of(result: DocumentResult) -> str | None:
    """Say how many questions failed; None: each was answered, or found to have no answer."""
    num_failed = sum(each["error"] is not None for each in result.answers)
    return f"{num_failed} of {len(result.answers)} questions failed" if num_failed else None


def as_object(result: DocumentResult) -> dict[str, object]:
    """Convert the answers of a document to a JSON object."""
    return {
        "document": result.source.shown,
        "answers": list(result.answers),
        "warnings": list(result.warnings),
        "usage": result.usage,
        "error": result.error,
    }


def rows(result: DocumentResult, questions: Sequence[str]) -> str:
    """Write a row for each question, also of a document that failed."""
    name = result.source.shown
    if result.error is not None:
        return answers.unanswered_lines(name, questions, shown_failure(result.error))
    return answers.answer_lines(name, result.answers, result.warnings)
