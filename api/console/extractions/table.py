"""The extractions that one request made, as a table of documents and fields, page by page and as a file."""

from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

from sqlalchemy.orm import Session

from api.console.extractions.extraction import SHOW_VALUES
from api.console.extractions.fields import ShownExtraction, shown_extraction
from api.console.extractions.listing import PAGES
from api.console.subjects.files import FileRow, csv_form, json_form, jsonl_form
from api.console.subjects.table import SubjectTable, table_routes
from jobs.extractions import queries
from jobs.extractions.fields import field_names
from jobs.models import Summary
from jobs.states.summary import SummaryState
from longbatch.tables import extractions as tables
from longbatch.tables.findings import shown_failure


def _columns_of(asked: Summary) -> Sequence[str]:
    return field_names(asked.schema or {})


def _read_found(session: Session, found: Sequence[Summary]) -> Mapping[UUID, ShownExtraction]:
    shown = queries.describe_each_whole(session, found)
    return {each.id: shown_extraction(described) for each, described in zip(found, shown, strict=True)}


def _csv_row(row: FileRow[ShownExtraction], fields: Sequence[str]) -> str:
    asked = row.asked
    error = row.found.shown["error"]
    if asked.state == SummaryState.COMPLETED and error is None:
        return tables.line(tables.row(row.name, fields, row.found.shown))
    why = shown_failure(error) if error else f"[{asked.state}]"
    return tables.line(tables.row(row.name, fields, {}, why=why))


def _as_object(row: FileRow[ShownExtraction]) -> Mapping[str, object]:
    return {
        "id": row.found.shown["id"],
        "state": row.asked.state,
        "document": row.document,
        "filename": row.filename,
        **tables.found_in(row.found.shown),
        "usage": row.found.shown["usage"],
        "error": row.found.shown["error"],
    }


_TABLE: Final[SubjectTable[ShownExtraction]] = SubjectTable(
    PAGES,
    title="Extractions made together",
    template="extractions/table.html",
    show=SHOW_VALUES,
    columns_of=_columns_of,
    read_found=_read_found,
    forms={
        "csv": csv_form(tables.header, _csv_row),
        "json": json_form(_as_object),
        "jsonl": jsonl_form(_as_object),
    },
    unfinished="The extraction has not ended yet.",
)
router = table_routes(_TABLE)
