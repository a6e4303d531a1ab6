"""The answers that one request made, as a table of documents and questions, page by page and as a file."""

from collections.abc import Mapping, Sequence
from typing import Final

from api.console.answers.answers import SHOW_ANSWERS
from api.console.answers.listing import PAGES
from api.console.subjects.files import FileRow, csv_form, json_form
from api.console.subjects.table import SubjectTable, table_routes
from jobs import ids
from jobs.models import Summary
from jobs.questions import queries
from jobs.questions.views import AnswerReply
from longbatch.tables import answers as tables
from longbatch.tables.findings import shown_failure

Answers = Sequence[AnswerReply]


def _columns_of(asked: Summary) -> Sequence[str]:
    return asked.questions or []


def _csv_row(row: FileRow[Answers], questions: Sequence[str]) -> str:
    if row.found:
        return tables.answer_lines(row.name, row.found, row.asked.warnings)
    why = shown_failure(row.asked.error) if row.asked.error else f"[{row.asked.state}]"
    return tables.unanswered_lines(row.name, questions, why)


def _as_object(row: FileRow[Answers]) -> Mapping[str, object]:
    return {
        "id": ids.answers_id(row.asked.id),
        "state": row.asked.state,
        "document": row.document,
        "filename": row.filename,
        "answers": row.found,
        "warnings": row.asked.warnings,
        "error": row.asked.error,
    }


_TABLE: Final[SubjectTable[Answers]] = SubjectTable(
    PAGES,
    title="Answers asked together",
    template="answers/table.html",
    show=SHOW_ANSWERS,
    columns_of=_columns_of,
    read_found=queries.list_findings,
    forms={"csv": csv_form(lambda _: tables.header(), _csv_row), "json": json_form(_as_object)},
    unfinished="The answers have not ended yet.",
)
router = table_routes(_TABLE)
