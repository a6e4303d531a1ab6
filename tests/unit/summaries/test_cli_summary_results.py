import csv
import io
import json
import stat
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from longbatch.cli import result_files as summary_results
from longbatch.cli.options import Format, request
from longbatch.cli.outputs import FolderWriter, LocalFolder, StdoutWriter, write_shared
from longbatch.documents.results import DocumentResult, failed, of_summary
from longbatch.documents.run import digest
from longbatch.documents.sources import SourceFile

SUMMARY: dict[str, Any] = {
    "id": "sum_1",
    "state": "completed",
    "summary": 'It is =fine, "quoted"\nand long.',
    "usage": {"prompt_tokens": 1200, "cached_tokens": 1088, "completion_tokens": 34},
    "error": None,
    "chunks": [
        {
            "document_id": "doc_1",
            "index": 0,
            "start": 0,
            "end": 1000,
            "pages": [1, 3],
            "state": "completed",
            "summary": "The first\npart.",
            "error": None,
        },
        {
            "document_id": "doc_2",
            "index": 1,
            "start": 0,
            "end": 500,
            "pages": None,
            "state": "failed",
            "summary": None,
            "error": {"code": "engine_error", "message": "it broke"},
        },
    ],
    "gaps": [
        {"document_id": "doc_2", "start": 0, "end": 500, "pages": None, "error": {"message": "it broke"}}
    ],
    "warnings": [
        {"document_id": "doc_1", "code": "encoding_guessed", "message": "Read as cp1252."},
        {"document_id": "doc_2", "code": "pages_without_text", "message": "No text.", "pages": [4]},
    ],
}


def source(name: str) -> SourceFile:
    return SourceFile(Path("/in") / name, f"in/{name}", Path(name))


def test_quotes_come_with_their_pages_and_what_is_in_no_text_says_so() -> None:
    place = {"at": 1, "document_id": "doc_1", "start": 5, "end": 9, "pages": [2, 2]}
    nowhere = dict.fromkeys(place) | {"at": 1}
    quotes = [
        {"quote": "the <b>tide", "quote_in_text": True, **place},
        {"quote": "a ship", "quote_in_text": False, **nowhere},
        {"quote": "a whale", "quote_in_text": None, **nowhere},
    ]
    whole = of_summary(source("a.pdf"), {**SUMMARY, "quotes": quotes})
    assert [list(each) for each in whole.quotes] == [["quote", "quote_in_text", "pages", "start", "end"]] * 3
    second = of_summary(source("b.pdf"), {**SUMMARY, "quotes": quotes}, document_id="doc_2")
    assert [each["quote"] for each in second.quotes] == ["a ship", "a whale"], "the first is in the other"
    _, _, listed = summary_results.markdown([whole], lambda _: "a.pdf").partition("## Quoted\n\n")
    first, missing, unknown = listed.splitlines()[:3]
    assert first.endswith("\u201d: [page 2](a.pdf#page=2), characters 5-9")
    assert "<b>" not in first
    assert missing == "- \u201ca ship\u201d: not in the text"
    assert unknown == "- \u201ca whale\u201d: not looked up"


def test_a_result_has_the_keys_that_are_promised() -> None:
    shown = summary_results.as_object(of_summary(source("a.pdf"), SUMMARY))
    assert list(shown) == ["path", "summary", "chunks", "quotes", "warnings", "usage", "error"]
    chunks = shown["chunks"]
    assert isinstance(chunks, list)
    assert [list(chunk) for chunk in chunks] == [["pages", "start", "end", "summary"]] * 2
    assert (shown["path"], shown["error"]) == ("in/a.pdf", None)


def test_of_a_shared_summary_each_document_has_its_own_parts() -> None:
    first, second = (of_summary(source("a"), SUMMARY, document_id=each) for each in ("doc_1", "doc_2"))
    assert (len(first.chunks), len(first.gaps), len(second.chunks), len(second.gaps)) == (1, 0, 1, 1)
    assert first.summary == second.summary == SUMMARY["summary"]


def test_what_did_not_complete_has_an_error_with_code_and_message() -> None:
    ended = {**SUMMARY, "state": "failed", "error": {"code": "document_empty", "message": "no text"}}
    result = of_summary(source("a"), ended)
    assert (result.summary, result.error) == (None, {"code": "document_empty", "message": "no text"})
    cancelled = of_summary(source("a"), {**SUMMARY, "state": "cancelled"})
    assert cancelled.error == {"code": "cancelled", "message": "The summary is cancelled."}


def test_markdown_says_the_summary_of_an_only_part_once() -> None:
    only = {**SUMMARY["chunks"][0], "summary": SUMMARY["summary"]}
    ended = {**SUMMARY, "chunks": [only], "gaps": []}
    text = summary_results.markdown([of_summary(source("a.pdf"), ended)], lambda _: "a.pdf")
    assert text.count("and long.") == 1
    assert "- [pages 1-3](a.pdf#page=1), characters 0-1,000\n" in text


def test_markdown_links_to_the_pages() -> None:
    text = summary_results.markdown([of_summary(source("a b.pdf"), SUMMARY)], lambda _: "../in/a b.pdf")
    assert text.startswith("# in/a b.pdf\n\nIt is =fine")
    assert "- [pages 1-3](../in/a%20b.pdf#page=1), characters 0-1,000: The first part.\n" in text
    assert "- [characters 0-500](../in/a%20b.pdf): left out\n" in text
    assert "\n> Warning: Read as cp1252.\n" in text
    assert "## Left out\n\n- [characters 0-500](../in/a%20b.pdf): it broke\n" in text


@pytest.mark.parametrize("kind", list(Format))
def test_results_are_printed_in_the_order_of_their_files(
    kind: Format, capsys: pytest.CaptureFixture[str]
) -> None:
    output = StdoutWriter(kind, nullcontext)
    results = [of_summary(source("a"), SUMMARY), failed(source("b"), "document_empty", "no text")]
    results.append(of_summary(source("c"), SUMMARY))
    for place in (2, 0, 1):
        output.take(place, [lambda place=place: results[place]])  # type: ignore[misc]  # a closure of this turn
    output.close()
    printed = capsys.readouterr().out
    match kind:
        case Format.JSON:
            assert json.loads(printed) == [summary_results.as_object(each) for each in results]
        case Format.CSV:
            rows = list(csv.DictReader(io.StringIO(printed)))
            assert [row["path"] for row in rows] == ["in/a", "in/b", "in/c"]
            assert rows[0]["summary"] == SUMMARY["summary"]
            assert (rows[0]["prompt_tokens"], rows[0]["cached_tokens"]) == ("1200", "1088")
            assert rows[1]["error_code"] == "document_empty"
        case Format.MD:
            assert [line for line in printed.splitlines() if line.startswith("# ")] == [
                "# in/a",
                "# in/b",
                "# in/c",
            ]


@pytest.mark.parametrize("kind", list(Format))
def test_an_interrupted_list_is_whole(kind: Format, capsys: pytest.CaptureFixture[str]) -> None:
    for places in ([], [1]):
        output = StdoutWriter(kind, nullcontext)
        for place in places:
            output.take(place, [lambda: of_summary(source("b"), SUMMARY)])
        output.close()
        printed = capsys.readouterr().out
        if kind is Format.JSON:
            assert len(json.loads(printed)) == len(places)


@pytest.mark.parametrize("kind", list(Format))
def test_equal_names_in_different_folders_have_files_of_their_own(kind: Format, tmp_path: Path) -> None:
    written = FolderWriter(LocalFolder(tmp_path / "out"), kind)
    names = ["a/x.txt", "b/x.txt", "x.txt", "x.pdf", "x"]
    paths = {written.write(of_summary(source(name), SUMMARY)) for name in names}
    assert len(paths) == len(names)
    assert {str(path) for path in paths} == {f"{name}.{kind}" for name in names}
    assert all((tmp_path / "out" / path).is_file() for path in paths)


@pytest.mark.parametrize("kind", list(Format))
def test_a_failure_leaves_no_summary_and_a_summary_no_failure(kind: Format, tmp_path: Path) -> None:
    written = FolderWriter(LocalFolder(tmp_path), kind)
    good: DocumentResult = of_summary(source("x.txt"), SUMMARY)
    written.write(good)
    bad = tmp_path / written.write(failed(source("x.txt"), "document_corrupt", "broken"))
    assert json.loads(bad.read_text())["error"]["code"] == "document_corrupt"
    assert [path.name for path in tmp_path.iterdir()] == [bad.name]
    written.write(good)
    assert [path.name for path in tmp_path.iterdir()] == [f"x.txt.{kind}"]


def test_a_file_is_written_whole_for_all_who_may_read(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b.md"
    write_shared(path, "x\ud7ff\n")
    assert path.read_text(encoding="utf-8") == "x\ud7ff\n"
    with pytest.raises(UnicodeEncodeError):
        write_shared(path, "\ud800")
    assert path.read_text(encoding="utf-8") == "x\ud7ff\n"
    assert [each.name for each in path.parent.iterdir()] == ["b.md"]
    probe = tmp_path / "probe"
    probe.touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(probe.stat().st_mode)


def test_a_run_is_named_by_what_its_result_depends_on() -> None:
    fields = request(style="bullets", length=100, language=None)
    name = digest(["a"], fields, model="m")
    assert name == digest(["a"], request(length=100, style="bullets", priority="high"), model="m")
    others = [
        digest(["b"], fields, model="m"),
        digest(["a", "a"], fields, model="m"),
        digest(["a"], request(style="tldr", length=100), model="m"),
        digest(["a"], fields, model="n"),
    ]
    assert len({name, *others}) == 5
