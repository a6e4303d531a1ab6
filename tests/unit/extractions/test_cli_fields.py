"""The table of extracted fields in each format: a row for each document, whatever became of it."""

import csv
import io
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer
from openpyxl import load_workbook

from longbatch.cli.field_tables import FieldsFormat, fields_sheet, problem_of
from longbatch.cli.schemas import read_joins, read_schema
from longbatch.cli.tables import OrderedTable
from longbatch.documents.results import DocumentResult, failed, of_extraction
from longbatch.documents.sources import SourceFile

FIELDS = ["name", "sum", "paid", "tags"]
HEADING = [
    *("document", "name", "sum", "paid", "tags", "name.pages", "name.quote", "sum.pages", "sum.quote"),
    *("paid.pages", "paid.quote", "tags.pages", "tags.quote", "error", "warnings"),
]


def source(name: str) -> SourceFile:
    return SourceFile(Path("/in") / name, f"in/{name}", Path(name))


def said(quote: str | None, pages: list[int] | None, *, in_text: bool | None = True) -> dict[str, Any]:
    return {"quote": quote, "quote_in_text": in_text, "pages": pages, "start": 0, "end": 1}


def extracted(name: str, *, fault: str | None = None, gaps: list[Any] | None = None) -> DocumentResult:
    found: dict[str, tuple[Any, list[Any]]] = {
        "name": ("=HYPERLINK(1)", [said("+Ada", [2, 2])]),
        "sum": (-12.5, [said("is 5", [1, 1]), said("is 7", [3, 4], in_text=False), said("is 5", [1, 1])]),
        "paid": (False, [said(None, None, in_text=None)]),
        "tags": (["é", 1], []),
    }
    fields = [
        {"field": field, "found": True, "value": value, "sources": sources}
        for field, (value, sources) in found.items()
    ]
    extraction = {
        "state": "completed",
        "valid": fault is None,
        "fault": fault,
        "gaps": gaps or [],
        "warnings": [{"document_id": "doc_1", "code": "encoding_guessed", "message": "Read as cp1252."}],
        "fields": fields,
        "values": {field: value for field, (value, _) in found.items()},
        "usage": {},
        "error": None,
    }
    return of_extraction(source(name), extraction)


def written(
    kind: FieldsFormat, *results: DocumentResult, order: list[int], path: Path
) -> tuple[int, list[str]]:
    said_: list[str] = []
    with path.open("w", encoding="utf-8", newline="") as out:
        table = OrderedTable(fields_sheet(out, kind, FIELDS), problem_of=problem_of, say=said_.append)
        for place in order:
            table.take(place, [partial(results.__getitem__, place)])
        table.close()
    return table.num_complete, said_


def some() -> list[DocumentResult]:
    gap = {"start": 5, "end": 9, "pages": [3, 4], "error": {"code": "engine_error", "message": "it broke"}}
    return [
        extracted("a"),
        failed(source("b"), "document_empty", "It is empty."),
        extracted("c", fault="at /sum: too small", gaps=[gap, gap | {"pages": None}]),
    ]


def test_csv_has_document_fields_sources_and_error_in_the_order_of_the_files(tmp_path: Path) -> None:
    path = tmp_path / "table"
    assert written(FieldsFormat.CSV, *some(), order=[2, 0, 1], path=path) == (
        1,
        ["in/c: not valid: at /sum: too small"],
    )
    heading, a, b, c = csv.reader(io.StringIO(path.read_text()))
    assert heading == HEADING
    assert a[:5] == ["in/a", "'=HYPERLINK(1)", "-12.5", "false", '["é", 1]']
    assert a[5:9] == ["2", "'+Ada", "1, 3-4", "is 5 | [not in the text] is 7"]
    assert a[9:] == ["", "", "", "", "", "Read as cp1252."]
    assert b == ["in/b", *[""] * 12, "[failed] It is empty. (document_empty)", ""]
    assert c[:13] == ["in/c", *a[1:13]]
    assert c[13] == "[not valid] at /sum: too small [not read] pages 3-4, characters 5-9"


def test_json_and_json_lines_have_all_that_the_server_said(tmp_path: Path) -> None:
    path = tmp_path / "table"
    written(FieldsFormat.JSON, *some(), order=[0, 2], path=path)
    found = json.loads(path.read_text())
    assert [each["document"] for each in found] == ["in/a", "in/c"]
    assert found[0]["values"] == {"name": "=HYPERLINK(1)", "sum": -12.5, "paid": False, "tags": ["é", 1]}
    written(FieldsFormat.JSONL, *some(), order=[0, 1, 2], path=path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [lines[0], lines[2]] == found
    assert found[0]["warnings"] == [{"code": "encoding_guessed", "message": "Read as cp1252."}]
    assert (lines[1]["values"], lines[1]["error"]["code"]) == (None, "document_empty")


def test_a_workbook_keeps_numbers_and_takes_no_text_for_a_formula(tmp_path: Path) -> None:
    path = tmp_path / "table.xlsx"
    odd = extracted("d")
    fields: Any = (odd.extraction or {})["fields"]
    fields[0]["value"], fields[1]["value"], fields[2]["value"] = "#N/A", 10**15, "x" * 40_000 + "\x07"
    written(FieldsFormat.XLSX, *some(), odd, order=[0, 1, 2, 3], path=path)
    (sheet,) = load_workbook(path).worksheets
    rows = [*sheet.iter_rows()]
    assert [cell.value for cell in rows[0]] == HEADING
    name, amount, paid = rows[1][1:4]
    assert (name.data_type, name.value, name.quotePrefix) == ("s", "=HYPERLINK(1)", True)
    assert (amount.value, paid.value) == (-12.5, False)
    assert (rows[1][6].data_type, rows[1][6].value) == ("s", "+Ada")
    assert rows[2][13].value == "[failed] It is empty. (document_empty)"
    assert rows[2][1].value is None
    assert [cell.data_type for cell in rows[4][1:4]] == ["s", "s", "s"]
    assert rows[4][2].value == str(10**15)
    assert (len(rows[4][3].value), rows[4][3].value[-1]) == (32_767, "…")


def test_a_schema_and_its_rules_are_read(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text('\ufeff{"type": "object", "properties": {"a=b": {}, "c": {}}}')
    schema = read_schema(file)
    assert [*schema["properties"]] == ["a=b", "c"]
    assert read_joins(["a=b=sum", "c=first"], schema) == {"a=b": "sum", "c": "first"}
    assert read_joins([], schema) is None
    for named in (["c"], ["d=first"]):
        with pytest.raises(typer.BadParameter):
            read_joins(named, schema)
    for content in ("{", "[]", '{"properties": 3}', "[" * 99_999):
        file.write_text(content)
        with pytest.raises(typer.BadParameter):
            read_schema(file)
    with pytest.raises(typer.BadParameter):
        read_schema(tmp_path)
