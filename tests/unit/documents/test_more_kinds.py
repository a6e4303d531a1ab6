"""The text of odt, ods, rtf, msg and xls, and how bad files of these kinds end."""

# ruff: noqa: E501, RUF001  # markup

import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
import zstandard

from document_support import ENTITY_BOMB, SMALL_MEMORY_MB, zip_bomb, zipped
from formats.old_formats import make_msg, make_ole, make_open_document, make_xls
from jobs.documents.kinds import HEAD_BYTES, TAIL_BYTES, UploadHints, find_kind
from jobs.settings import DocumentSettings
from jobs.states.document import DocumentKind
from worker.documents.sandbox import Extraction, ExtractionFailure, Sandbox
from worker.extract.__main__ import read
from worker.extract.draft import ExtractionError, ExtractionLimits, TextBuilder

LIMITS = ExtractionLimits(memory_bytes=2**30, seconds=10, max_pages=100, max_characters=100_000)
SMALL = DocumentSettings(extraction_seconds=60, extraction_memory_mb=SMALL_MEMORY_MB)
RTF = (
    rb"{\rtf1\ansi\ansicpg1252{\info{\title A report}}{\fonttbl{\f0 Times;}}\f0 Gr\'fc\'dfe for \u8364?5.\par "
    rb"Second {\b bold} line.{\pict 89504e47}\par}"
)


def kind_of(data: bytes, filename: str) -> DocumentKind:
    return find_kind(UploadHints(data[:HEAD_BYTES], data[-TAIL_BYTES:], filename))


def read_in_sandbox(data: bytes, filename: str, settings: DocumentSettings = SMALL) -> object:
    return Sandbox(settings).run([data], kind=kind_of(data, filename), num_bytes=len(data))


def sandboxed_text(data: bytes, filename: str) -> str:
    outcome = read_in_sandbox(data, filename)
    assert isinstance(outcome, Extraction), outcome
    return zstandard.ZstdDecompressor().decompress(outcome.body).decode()


def text_of(data: bytes, filename: str) -> tuple[str, TextBuilder]:
    draft = read(kind_of(data, filename).value, data, LIMITS)
    return draft.text(), draft


def test_an_open_document_has_headings_paragraphs_rows_and_notes() -> None:
    body = (
        '<text:tracked-changes><text:p>deleted</text:p></text:tracked-changes><text:h text:outline-level="2">Head'
        '</text:h><text:p>One<text:s text:c="3"/><text:span>two</text:span><text:tab/>x<text:note><text:note-citation>1'
        "</text:note-citation><text:note-body><text:p>A note.</text:p></text:note-body></text:note>"
        "<office:annotation><text:p>comment</text:p></office:annotation> end</text:p>"
        "<text:list><text:list-item><text:p>item</text:p></text:list-item></text:list>"
        "<table:table><table:table-row><table:table-cell><text:p>a</text:p><text:p>b</text:p></table:table-cell>"
        "<table:table-cell><text:p>c</text:p></table:table-cell></table:table-row></table:table>"
    )
    text, draft = text_of(make_open_document(body), "")
    assert text == (
        "## Head\n\nOne   two\tx[1] [Comment: comment] end\n\n- item\n\na b | c\n\n[1] A note.\n\n"
    )
    assert (draft.title, draft.pages) == ("A title", None)


def test_each_sheet_of_an_ods_is_a_page_whose_repeated_cells_are_all_there() -> None:
    body = (
        '<table:table table:name="One"><table:table-row table:number-rows-repeated="2"><table:table-cell>'
        '<text:p>a</text:p></table:table-cell><table:table-cell table:number-columns-repeated="2"/><table:table-cell>'
        '<text:p>1.5</text:p></table:table-cell><table:table-cell table:number-columns-repeated="16000"/>'
        '</table:table-row><table:table-row table:number-rows-repeated="1048000"><table:table-cell/></table:table-row>'
        '</table:table><table:table table:name="Two"><table:table-row><table:table-cell><text:p>b</text:p>'
        "</table:table-cell></table:table-row></table:table>"
    )
    text, draft = text_of(make_open_document(body, kind="spreadsheet"), "")
    assert text == "# One\n\na\t\t\t1.5\na\t\t\t1.5\n\n\n# Two\n\nb\n"
    assert draft.pages == [0, text.index("# Two")]


def test_rich_text_keeps_its_letters_and_paragraphs_and_no_pictures() -> None:
    text, draft = text_of(RTF, "a.txt")
    assert (text, draft.title) == ("Grüße for €5.\n\nSecond bold line.\n", "A report")


def test_a_message_has_its_headers_its_body_and_the_names_of_what_is_attached() -> None:
    text, draft = text_of(make_msg(body="The sea is calm.\n", attached=["map.bin", "b.msg"]), "")
    assert text == (
        "From: Ann <ann@example.org>\nTo: Bob\nDate: 2026-01-01T00:00:00+00:00\nSubject: Grüße from the sea\n\n"
        "The sea is calm.\n\n\nAttachments: map.bin, b.msg\n"
    )
    assert draft.title == "Grüße from the sea"
    assert text_of(make_msg(html="<p>The <b>sea</b> – calm.</p>".encode()), "")[0].endswith(
        "\n\nThe sea – calm."
    )


def test_each_sheet_of_an_old_workbook_is_a_page() -> None:
    sheets: dict[str, list[list[str | float | None]]] = {
        "One": [["first", 1, None, 2.5], [None], ["Grüße\nhere"]],
        "Two": [["second"]],
    }
    text, draft = text_of(make_xls(sheets), "")
    assert text == "# One\n\nfirst\t1\t\t2.5\nGrüße here\n\n\n# Two\n\nsecond\n"
    assert draft.pages == [0, text.index("# Two")]


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("a.odt", lambda: make_open_document("<text:p>Calm.</text:p>")),
        ("a.rtf", lambda: RTF),
        ("a.msg", lambda: make_msg(body="Calm.")),
        ("a.xls", lambda: make_xls({"One": [["Calm."]]})),
    ],
)
def test_the_confined_process_reads_each_of_these_kinds(name: str, make: Callable[[], bytes]) -> None:
    assert not isinstance(outcome := read_in_sandbox(make(), name), ExtractionFailure), outcome


def nested(num_levels: int) -> bytes:
    return make_open_document(
        "<text:p>" + "<text:span>" * num_levels + "</text:span>" * num_levels + "</text:p>"
    )


def repeated_ods() -> bytes:
    cell = '<table:table-cell table:number-columns-repeated="16384"><text:p>wide text</text:p></table:table-cell>'
    rows = f'<table:table-row table:number-rows-repeated="1048576">{cell}</table:table-row>' * 50
    return make_open_document(f"<table:table>{rows}</table:table>", kind="spreadsheet")


@pytest.mark.parametrize(
    ("name", "make", "code"),
    [
        ("a.odt", lambda: zip_bomb("content.xml"), "document_too_large"),
        ("a.odt", lambda: zipped({"content.xml": f"{ENTITY_BOMB}<p>&a9;</p>"}), "document_corrupt"),
        ("a.odt", lambda: nested(100_000), "document_corrupt"),
        ("a.odt", lambda: zipped({"content.xml": "<a>"}), "document_corrupt"),
        ("a.odt", lambda: make_open_document("", manifest="<encryption-data/>"), "document_encrypted"),
        ("a.odt", lambda: zipped({"a": "a"}), "unsupported_document"),
        ("a.ods", repeated_ods, "document_too_large"),
        ("a.rtf", lambda: b"{\\rtf1 " + b"{" * 1_000_000, "document_empty"),
        ("a.rtf", lambda: b"{\\rtf1 " + b"{\\pict " * 200_000 + b"x", "document_empty"),
        ("a.rtf", lambda: b"{\\rtf1 " + b"long text " * 30_000, "document_too_large"),
        ("a.msg", lambda: make_msg(body="a")[:2000], "document_corrupt"),
        ("a.msg", lambda: make_ole({"other": b"a"}), "document_corrupt"),
        ("a.msg", lambda: make_ole({f"stream {number}": b"" for number in range(1100)}), "document_corrupt"),
        ("a.xls", lambda: make_xls({"One": [["a"]]})[:3000], "document_corrupt"),
        ("a.xls", lambda: make_xls({f"{n}": [["a"]] for n in range(120)}), "document_too_many_pages"),
    ],
)
def test_a_bad_file_ends_with_its_code(name: str, make: Callable[[], bytes], code: str) -> None:
    outcome = read_in_sandbox(
        make(), name, SMALL.model_copy(update={"max_pages": 100, "max_characters": 200_000})
    )
    assert isinstance(outcome, ExtractionFailure)
    assert outcome.code.value == code, outcome


def test_a_workbook_as_wide_and_long_as_the_format_allows_is_read() -> None:
    empty: list[list[str | float | None]] = [[]]
    last: list[str | float | None] = [*[None] * 255, "last"]
    rows: list[list[str | float | None]] = [["first"], *empty * 65_534, last]
    assert sandboxed_text(make_xls({"One": rows}), "a.xls") == "# One\n\nfirst\n[IV] last\n"


def test_long_texts_end_at_the_limit_of_characters() -> None:
    with pytest.raises(ExtractionError, match="more than 10 characters"):
        read("rtf", RTF, replace(LIMITS, max_characters=10))


@pytest.mark.parametrize(("kind", "module"), [("msg", "olefile"), ("xls", "xlrd")])
def test_a_kind_of_the_extra_says_so_where_that_is_missing(
    kind: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ExtractionError, match=r"longbatch-server\[docs\]"):
        read(kind, RTF, LIMITS)


def test_numbers_of_an_old_workbook_are_shown_by_their_formats() -> None:
    made = make_xls(
        {"One": [[0.153, 1.25, 46095.0, -12.0]]}, ["0.0%", "[h]:mm", "dd.mm.yyyy", "#,##0.00 €;(#,##0.00 €)"]
    )
    assert sandboxed_text(made, "a.xls") == "# One\n\n15.3%\t30:00\t2026-03-14\t(12.00 €)\n"


def test_soft_hyphens_of_an_open_document_are_not_seen() -> None:
    made = make_open_document("<text:p>Donau\u00addampf</text:p>")
    assert text_of(made, "a.odt")[0].strip() == "Donaudampf"
