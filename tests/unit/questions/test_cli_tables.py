"""The table of answers: a row for each document and question, whatever became of either."""

import csv
import io
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer

from longbatch.cli.answer_tables import TableFormat, answers_sheet, problem_of
from longbatch.cli.questions import read_questions
from longbatch.cli.tables import OrderedTable
from longbatch.documents.results import DocumentResult, failed, of_answers
from longbatch.documents.sources import SourceFile
from longbatch.whole_files import writing_whole

QUESTIONS = ["Rent?", "Notice?", "Sky?", "Part?"]


def answer(question: str, **fields: Any) -> dict[str, Any]:  # noqa: ANN401  # JSON
    empty = {"found": False, "answer": None, "pages": None, "quote": None, "quote_in_text": None}
    return {"question": question, **empty, "start": None, "end": None, "gaps": [], "error": None} | fields


def source(name: str) -> SourceFile:
    return SourceFile(Path("/in") / name, f"in/{name}", Path(name))


def answered(name: str) -> DocumentResult:
    gap = {"start": 5, "end": 9, "pages": [3, 4], "error": {"code": "engine_error", "message": "it broke"}}
    found = [
        answer("Rent?", found=True, answer="=900", pages=[2, 2], quote="is 900", quote_in_text=True),
        answer("Notice?", found=True, answer="a\nb", pages=[1, 3], quote="was it", quote_in_text=False),
        answer("Sky?"),
        answer("Part?", gaps=[gap, gap | {"pages": None}]),
    ]
    warnings = [{"document_id": "doc_1", "code": "encoding_guessed", "message": "=Read as cp1252."}]
    tree: dict[str, Any] = {
        "state": "completed",
        "answers": found,
        "warnings": warnings,
        "usage": {},
        "error": None,
    }
    return of_answers(source(name), tree)


def broken(name: str) -> DocumentResult:
    found = answered(name)
    error = {"code": "invalid_output", "message": "no JSON"}
    return of_answers(
        source(name),
        {
            "state": "completed",
            "answers": [*found.answers[:3], answer("Part?", found=None, error=error)],
            "warnings": [],
            "usage": {},
            "error": None,
        },
    )


def table(kind: TableFormat, *results: DocumentResult, order: list[int]) -> tuple[str, int]:
    out = io.StringIO()
    writer = OrderedTable(answers_sheet(out, kind, QUESTIONS), problem_of=problem_of)
    for place in order:
        writer.take(place, [partial(results.__getitem__, place)])
    writer.close()
    return out.getvalue(), writer.num_complete


def test_every_document_and_question_has_a_row_in_the_order_of_the_files() -> None:
    results = answered("a"), failed(source("b"), "document_empty", "It is empty."), broken("c")
    written, num_complete = table(TableFormat.CSV, *results, order=[2, 0, 1])
    rows = [*csv.reader(io.StringIO(written))]
    assert rows[0] == ["document", "question", "answer", "pages", "quote", "warnings"]
    assert [(name, question) for name, question, *_ in rows[1:]] == [
        (f"in/{name}", question) for name in "abc" for question in QUESTIONS
    ]
    assert rows[1][2:] == ["'=900", "2", "is 900", "'=Read as cp1252."], "no formula"
    assert rows[2][2:5] == ["a\nb", "1-3", "[not in the text] was it"]
    assert rows[3][2:5] == ["not in the document", "", ""]
    assert rows[4][2] == "not in the document [not asked: pages 3-4, characters 5-9]"
    assert {row[2] for row in rows[5:9]} == {"[failed] It is empty. (document_empty)"}
    assert rows[12][2] == "[failed] no JSON (invalid_output)"
    assert {row[5] for row in rows[5:]} == {""}
    assert num_complete == 1


def test_json_lists_the_documents_even_if_one_is_missing() -> None:
    written, _ = table(TableFormat.JSON, answered("a"), answered("b"), broken("c"), order=[0, 2])
    found = json.loads(written)
    assert [each["document"] for each in found] == ["in/a", "in/c"]
    assert found[0]["answers"][0]["quote_in_text"] is True
    assert [len(each["warnings"]) for each in found] == [1, 0]
    assert json.loads(table(TableFormat.JSON, order=[])[0]) == []


def test_questions_are_read_in_order_each_once(tmp_path: Path) -> None:
    file = tmp_path / "questions.txt"
    file.write_bytes("\ufeffWhen?\r\n\r\n Who? \nWhen?\n".encode())
    assert read_questions(["Who?", " "], file) == ["Who?", "When?"]
    assert read_questions(["Who?"], None) == ["Who?"]
    for named, other in (([], None), ([" "], None), ([], tmp_path / "none"), ([], tmp_path)):
        with pytest.raises(typer.BadParameter):
            read_questions(named, other)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(typer.BadParameter, match="not UTF-8"):
        read_questions([], file)


def test_a_table_that_was_not_finished_does_not_replace_an_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("earlier")

    def fail() -> None:
        with writing_whole(path) as file:
            file.write("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert path.read_text() == "earlier"
    assert [*tmp_path.iterdir()] == [path]
    with writing_whole(path) as file:
        file.write("whole")
    assert path.read_text() == "whole"
