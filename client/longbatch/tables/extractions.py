"""The fields of documents, as rows of a table."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from longbatch.tables.cells import csv_line
from longbatch.tables.findings import shown_gaps, shown_pages, shown_quote, shown_warnings

_FOUND: Final = ("values", "valid", "fault", "fields", "gaps", "warnings")
_BETWEEN: Final = " | "  # quotes of several parts
Cell = str | int | float | bool | None


def columns(fields: Sequence[str]) -> list[str]:
    """Name the columns: document, fields, pages and quote of each field, error, warnings."""
    sources = (f"{name}.{of}" for name in fields for of in ("pages", "quote"))
    return ["document", *fields, *sources, "error", "warnings"]


def row(document: str, fields: Sequence[str], extraction: Mapping[str, Any], *, why: str = "") -> list[Cell]:
    """Return the cells of a document.

    Args:
        document: how the table calls it.
        fields: of the schema, in order.
        extraction: as `ExtractionWithValues` has it; empty: there is none.
        why: there is no row; empty: there is one.
    """
    found = {each["field"]: each for each in extraction.get("fields", ())}
    values = [_cell(found[name]["value"]) if name in found else None for name in fields]
    sources = (cell for name in fields for cell in _sources(found.get(name, {}).get("sources", ())))
    warned = shown_warnings(extraction.get("warnings", ()))
    return [document, *values, *sources, why or _flaws(extraction), warned]


def header(fields: Sequence[str]) -> str:
    """Write the line with the columns' names."""
    return csv_line(columns(fields))


def line(cells: Sequence[Cell]) -> str:
    """Write a row of CSV, booleans as JSON does."""
    return csv_line(json.dumps(each) if isinstance(each, bool) else each for each in cells)


def found_in(extraction: Mapping[str, Any]) -> dict[str, object]:
    """Return what was found, of `ExtractionWithValues` or of none."""
    return {name: extraction.get(name) for name in _FOUND}


def _cell(value: Any) -> Cell:  # noqa: ANN401  # JSON
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value


def _sources(sources: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Write the pages and the quotes of a value, each once."""
    pages = dict.fromkeys(shown_pages(each["pages"]) for each in sources if each["pages"])
    quotes = (shown_quote(each["quote"], in_text=each["quote_in_text"]) for each in sources)
    return ", ".join(pages), _BETWEEN.join(dict.fromkeys(filter(None, quotes)))


def _flaws(extraction: Mapping[str, Any]) -> str:
    """Say what is wrong with a row, and what it leaves out."""
    fault = f"[not valid] {extraction['fault']}" if extraction.get("fault") else ""
    gaps = f"[not read] {shown_gaps(extraction['gaps'])}" if extraction.get("gaps") else ""
    return " ".join(filter(None, (fault, gaps)))
