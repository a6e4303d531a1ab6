"""The fields of a document as a row of a table: CSV, JSON, JSON lines or a workbook for spreadsheets."""

import json
from collections.abc import Sequence
from functools import partial
from typing import Any, BinaryIO, Final, TextIO

from longbatch.backports import StrEnum
from longbatch.cli.tables import JsonSheet, Sheet, TextSheet
from longbatch.documents.results import DocumentResult
from longbatch.errors import LongbatchError
from longbatch.tables import extractions
from longbatch.tables.cells import is_formula
from longbatch.tables.extractions import Cell
from longbatch.tables.findings import shown_failure

_MAX_CELL_CHARS: Final = 32_767  # of a spreadsheet
_MAX_EXACT: Final = 10**15  # a spreadsheet keeps 15 digits


class FieldsFormat(StrEnum):
    """File format of extracted fields."""

    CSV = "csv"
    JSON = "json"
    JSONL = "jsonl"
    XLSX = "xlsx"


class WorkbookError(LongbatchError):
    """Workbooks need the extra `xlsx`: pip install 'longbatch[xlsx]'."""

    code = "workbook_unavailable"


def fields_sheet(out: TextIO, kind: FieldsFormat, fields: Sequence[str]) -> Sheet:
    """Begin a table of these fields; a workbook goes to the bytes of `out` when it is closed.

    Raises:
        WorkbookError: the extra for workbooks is not installed.
    """
    match kind:
        case FieldsFormat.CSV:
            return TextSheet(
                out, lambda result: extractions.line(_row(result, fields)), heading=extractions.header(fields)
            )
        case FieldsFormat.JSON:
            return JsonSheet(out, as_object)
        case FieldsFormat.JSONL:
            return TextSheet(out, lambda result: json.dumps(as_object(result), ensure_ascii=False) + "\n")
        case FieldsFormat.XLSX:
            return Workbook(out.buffer, fields)


def problem_of(result: DocumentResult) -> str | None:
    """Say why the row of a document is not valid; None: it is."""
    fault = (result.extraction or {}).get("fault")
    return f"not valid: {fault}" if fault else None


def as_object(result: DocumentResult) -> dict[str, object]:
    """Convert what was found in a document to a JSON object."""
    return {
        "document": result.source.shown,
        **extractions.found_in(result.extraction or {}),
        "warnings": list(result.warnings),
        "usage": result.usage,
        "error": result.error,
    }


def _row(result: DocumentResult, fields: Sequence[str]) -> list[Cell]:
    """Return the cells of a document, also of one that failed."""
    why = "" if result.error is None else shown_failure(result.error)
    return extractions.row(result.source.shown, fields, result.extraction or {}, why=why)


class Workbook:
    """A workbook with one sheet; numbers stay numbers, and no text is taken for a formula.

    Raises:
        WorkbookError: the extra for workbooks is not installed.
    """

    def __init__(self, out: BinaryIO, fields: Sequence[str]) -> None:
        try:
            from openpyxl import Workbook as Book
            from openpyxl.cell import WriteOnlyCell
        except ImportError as error:
            raise WorkbookError from error
        self._out = out
        self._fields = fields
        self._book = Book(write_only=True)
        self._sheet = self._book.create_sheet("extraction")
        self._sheet.freeze_panes = "B2"
        self._new_cell = partial(WriteOnlyCell, self._sheet)
        self._append(extractions.columns(fields))

    def write(self, result: DocumentResult) -> None:
        """Write the row of a document."""
        self._append(_row(result, self._fields))

    def close(self) -> None:
        """Save the workbook."""
        self._book.save(self._out)

    def _append(self, cells: Sequence[Cell]) -> None:
        self._sheet.append([self._text(each) if isinstance(each, str) else _number(each) for each in cells])

    def _text(self, text: str) -> Any:  # noqa: ANN401  # openpyxl has no types
        from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE

        kept = ILLEGAL_CHARACTERS_RE.sub("\ufffd", text)
        cell = self._new_cell(kept if len(kept) <= _MAX_CELL_CHARS else f"{kept[: _MAX_CELL_CHARS - 1]}…")
        cell.data_type = "s"  # also what looks like a formula or an error
        cell.quotePrefix = is_formula(text)  # and it stays a text when somebody edits it
        return cell


def _number(value: float | bool | None) -> Cell:  # noqa: FBT001  # a cell
    """Return a number as a spreadsheet keeps it: longer ones as text."""
    is_long = isinstance(value, int) and abs(value) >= _MAX_EXACT
    return str(value) if is_long else value
