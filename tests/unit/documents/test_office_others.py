"""What readers of OpenDocument, rtf, epub and old workbooks show, mark and leave out."""

# ruff: noqa: E501  # markup

import io
import zipfile

import pytest

from document_support import make_epub, zipped
from formats.old_formats import make_open_document
from worker.extract.__main__ import read
from worker.extract.draft import ExtractionError, ExtractionLimits, TextBuilder

LIMITS = ExtractionLimits(memory_bytes=2**30, seconds=10, max_pages=100, max_characters=100_000)
_STYLE = 'xmlns:style="urn:oasis:names:tc:opendocument:xmlns:style:1.0"'
_DRAW = 'xmlns:draw="urn:oasis:names:tc:opendocument:xmlns:drawing:1.0" xmlns:presentation="urn:oasis:names:tc:opendocument:xmlns:presentation:1.0" xmlns:xlink="http://www.w3.org/1999/xlink"'


def codes(draft: TextBuilder) -> list[object]:
    return [warning["code"] for warning in draft.warnings]


def with_members(data: bytes, members: dict[str, str | bytes]) -> bytes:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return zipped({name: archive.read(name) for name in archive.namelist()} | members)


def styled(body: str, styles: str) -> str:
    """A body after styles of its own."""
    return f"<x {_STYLE} {_DRAW}>{styles}</x>{body}"


def rtf(
    body: str,
    *,
    head: str = r"\ansi\ansicpg1252\deff0{\fonttbl{\f0 Arial;}{\f1\fcharset204 Arial;}{\f2\fcharset2 Wingdings;}{\f3\fcharset128 Gothic;}}",
) -> str:
    return read("rtf", f"{{\\rtf1{head}{body}}}".encode("latin-1"), LIMITS).text()


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (
            r"a{\footnote \chftn the {\b note}}b{\footnote\ftnalt two\par lines} c\par",
            "a[1]b[2] c\n\n[1] the note\n\n[2] two\n\nlines\n",
        ),
        (
            r"{\header Case 7\par}{\headerf \chpgn}{\footer Secret}a\par",
            "[Header: Case 7]\n\na\n\n[Footer: Secret]\n",
        ),
        (
            r"a{\*\atnid AB}{\*\atnauthor Ann}\chatn{\*\annotation{\*\atnref 1}\pard no}, b\par",
            "a [Comment by Ann: no], b\n",
        ),
        (
            r"\f1\'cf\f0\'e9 \f3\'83\'65\'83\'58\f0  \f2\'fc\f0 \u8364?\uc2\u169ab\uc0\u174 \uc1\u-10179?\u-8576?\par",
            "Пé テス ✓€©®🚀\n",
        ),
        (r"{\deleted gone}{\v hid}kept{\*\unknown x}{\pict 8950}{\*\shppict{\pict 00}}\par", "hidkept\n"),
        (
            r"{\pntext 1.\tab}one\par{\listtext\'b7\tab}two\par{\listtext (a)\tab}three\par",
            "1. one\n\n- two\n\n(a) three\n",
        ),
        (
            r"\trowd\intbl a\cell b\par c\cell\row\trowd\intbl d\cell e\cell\row\pard after\par",
            "a | b c\nd | e\n\nafter\n",
        ),
        (r"\pard\outlinelevel1 Head\par\pard text\par", "## Head\n\ntext\n"),
        (
            r"before{\shp{\*\shpinst{\sp{\sn x}{\sv y}}{\shptxt in a box\par}}{\shprslt again}}\par",
            "in a box\n\nbefore\n",
        ),
        (
            r'{\field{\*\fldinst HYPERLINK "https://example.org/a"}{\fldrslt here}} {\field{\*\fldinst SYMBOL 254 \\f "Wingdings"}}\par',
            "here (https://example.org/a) ☑\n",
        ),
        (
            r"{\field{\*\fldinst FORMCHECKBOX {\*\formfield{\fftype1\ffres25\ffdefres1{\*\ffname n}}}}} yes\par",
            "☑ yes\n",
        ),
        (r"a\bin5 }}}}}b\par} out", "ab\n"),
        (r"unclosed{ a{ b", "unclosed a b\n"),
    ],
)
def test_rich_text_keeps_notes_margins_comments_letters_lists_and_tables(body: str, text: str) -> None:
    assert rtf(body) == text


def test_rich_text_that_breaks_off_in_a_note_keeps_it() -> None:
    draft = read("rtf", rb"{\rtf1 a{\footnote the no", LIMITS)
    assert (draft.text(), codes(draft)) == ("a[1]\n\n[1] the no\n", ["parts_damaged"])


def test_the_code_page_of_rich_text_is_that_of_the_file_or_of_the_font() -> None:
    assert rtf(r"\'cf\'f0\'e8\'e2\'e5\'f2", head=r"\ansi\ansicpg1251") == "Привет\n"
    assert rtf(r"\'e2\'82\'ac", head=r"\ansi\ansicpg65001") == "€\n"
    assert rtf(r"\'8a", head=r"\mac") == "ä\n"
    assert rtf(r"\'84", head=r"\pc") == "ä\n"


def test_text_of_odt_has_notes_comments_and_numbers_at_their_place() -> None:
    styles = (
        '<text:list-style style:name="L"><text:list-level-style-number text:level="1" style:num-format="1" style:num-suffix="."/>'
        '<text:list-level-style-number text:level="2" style:num-format="a" style:num-suffix=")"/></text:list-style>'
        '<text:list-style style:name="B"><text:list-level-style-bullet text:level="1"/></text:list-style>'
        '<style:style style:name="H"><style:text-properties text:display="none"/></style:style>'
    )
    item = "<text:list-item><text:p>{}</text:p>{}</text:list-item>"
    body = (
        "<text:p>a<text:note><text:note-citation>*</text:note-citation><text:note-body><text:p>N.</text:p></text:note-body></text:note>"
        '<office:annotation><dc:creator xmlns:dc="http://purl.org/dc/elements/1.1/">Ann</dc:creator><text:p>no</text:p></office:annotation>.</text:p>'
        f'<text:list text:style-name="L">{item.format("one", "")}{item.format("two", "<text:list>" + item.format("sub", "") * 2 + "</text:list>")}</text:list>'
        f'<text:list text:style-name="L" text:continue-numbering="true">{item.format("three", "")}</text:list>'
        f'<text:list text:style-name="B">{item.format("dot", "")}</text:list>'
        '<text:p><text:span text:style-name="H">hid</text:span></text:p>'
    )
    draft = read("odt", make_open_document(styled(body, styles)), LIMITS)
    assert draft.text() == (
        "a[1] [Comment by Ann: no].\n\n1. one\n\n2. two\n\na) sub\n\nb) sub\n\n3. three\n\n- dot\n\nhid\n\n[1] N.\n\n"
    )
    assert codes(draft) == ["hidden_parts"]


def test_headers_and_footers_of_odt_are_around_the_body() -> None:
    master = (
        f'<x {_STYLE} xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0"><style:header><text:p>Case 7</text:p></style:header>'
        "<style:footer><text:p>Page <text:page-number>1</text:page-number></text:p></style:footer></x>"
    )
    made = with_members(make_open_document("<text:p>Body.</text:p>"), {"styles.xml": master})
    assert read("odt", made, LIMITS).text() == "[Header: Case 7]\n\nBody.\n\n"


@pytest.mark.parametrize("name", ["styles.xml", "meta.xml"])
def test_a_damaged_part_of_odt_is_left_out_and_named(name: str) -> None:
    draft = read("odt", with_members(make_open_document("<text:p>Kept.</text:p>"), {name: "<a"}), LIMITS)
    assert (draft.text(), codes(draft)) == ("Kept.\n\n", ["parts_damaged"])


def test_content_that_breaks_off_is_read_up_to_there() -> None:
    made = make_open_document("<text:p>Kept.</text:p><text:p>and this")
    draft = read("odt", made, LIMITS)
    assert (draft.text(), codes(draft)) == ("Kept.\n\nand this\n\n", ["parts_damaged"])


def test_a_reference_to_another_file_is_left_out_of_odt_and_named() -> None:
    made = make_open_document("<text:p>Test: &other;kept.</text:p>")
    with zipfile.ZipFile(io.BytesIO(made)) as archive:
        content = archive.read("content.xml").decode()
    declared = content.replace("?>", '?><!DOCTYPE a [<!ENTITY other SYSTEM "/etc/hostname">]>', 1)
    draft = read("odt", with_members(made, {"content.xml": declared}), LIMITS)
    assert (draft.text(), codes(draft)) == ("Test: kept.\n\n", ["parts_not_read"])


def test_objects_in_odt_are_read_in_place() -> None:
    names = 'xmlns:office="urn:oasis:names:tc:opendocument:xmlns:office:1.0" xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0" xmlns:table="urn:oasis:names:tc:opendocument:xmlns:table:1.0"'
    chart = f"<office:document-content {names}><office:body><office:chart><text:p>Sales</text:p><table:table><table:table-row><table:table-cell><text:p>Q1</text:p></table:table-cell><table:table-cell><text:p>19.2</text:p></table:table-cell></table:table-row></table:table></office:chart></office:body></office:document-content>"
    math = '<math xmlns="http://www.w3.org/1998/Math/MathML"><semantics><mi>E</mi><annotation encoding="StarMath 5.0">E = m c^2</annotation></semantics></math>'
    body = f'<text:p>See <draw:object {_DRAW} xlink:href="./Object%201"/>.</text:p><draw:object {_DRAW} xlink:href="Object 2"/><draw:object {_DRAW} xlink:href="../../etc"/>'
    made = with_members(
        make_open_document(body), {"Object 1/content.xml": math, "Object 2/content.xml": chart}
    )
    assert read("odt", made, LIMITS).text() == "See E = m c^2.\n\n[Chart]\nSales\nQ1 | 19.2\n\n"


def test_sheets_of_ods_show_hidden_parts_values_and_formulas() -> None:
    def cell(attributes: str, text: str = "") -> str:
        return f"<table:table-cell {attributes}>{text}</table:table-cell>"

    styles = '<style:style style:name="H"><style:table-properties table:display="false"/></style:style>'
    row = "<table:table-row {}>{}</table:table-row>"
    body = (
        '<table:table table:name="A"><table:table-column/><table:table-column table:visibility="collapse"/>'
        + row.format(
            "",
            cell('office:value-type="percentage" office:value="0.153"')
            + cell('table:formula="of:=SUM([.A1])"'),
        )
        + row.format('table:visibility="filter"', cell("", "<text:p>x</text:p>"))
        + row.format("", cell('table:number-columns-repeated="900"') + cell("", "<text:p>far</text:p>"))
        + '</table:table><table:table table:name="B" table:style-name="H"/>'
    )
    draft = read("ods", make_open_document(styled(body, styles), kind="spreadsheet"), LIMITS)
    assert draft.text() == "# A\n\n15.3%\t=SUM([.A1])\nx\n[AHQ3] far\n\n\n# B (hidden sheet)\n\n"
    assert [(each["code"], each.get("pages")) for each in draft.warnings] == [
        ("hidden_parts", [1]),
        ("hidden_parts", [2]),
        ("formulas_without_values", None),
    ]


def test_slides_of_odp_are_pages_with_titles_notes_and_hidden_ones_marked() -> None:
    styles = '<style:style style:name="H"><style:drawing-page-properties presentation:visibility="hidden"/></style:style>'
    frame = "<draw:frame {}><draw:text-box><text:p>{}</text:p></draw:text-box></draw:frame>"
    title = frame.format('presentation:class="title"', "Plan")
    body = (
        f"<draw:page {_DRAW}>{title}{frame.format('', 'Text.')}"
        f"<presentation:notes>{frame.format('', 'Say this.')}</presentation:notes></draw:page>"
        f'<draw:page {_DRAW} draw:style-name="H">{frame.format("", "Two.")}</draw:page>'
    )
    draft = read("odp", make_open_document(styled(body, styles), kind="presentation"), LIMITS)
    assert draft.text() == "# Plan\n\nText.\n\nSay this.\n\n\n[Hidden slide]\n\nTwo.\n"
    assert [(each["code"], each["pages"]) for each in draft.warnings] == [("hidden_parts", [2])]


def test_chapters_that_are_missing_are_left_out_and_named() -> None:
    with zipfile.ZipFile(io.BytesIO(make_epub(["<p>One.", "<p>Two.", "<p>Three."]))) as archive:
        members = {name: archive.read(name) for name in archive.namelist() if name != "OPS/c1.xhtml"}
    draft = read("epub", zipped(members), LIMITS)
    assert draft.text().split() == ["One.", "Three."]
    assert [(each["code"], each["pages"]) for each in draft.warnings] == [("parts_damaged", [2])]
    assert "OPS/c1.xhtml" in str(draft.warnings[0]["message"])


def test_a_book_whose_container_is_damaged_is_found_and_one_without_chapters_refused() -> None:
    made = with_members(make_epub(["<p>One."]), {"META-INF/container.xml": "<x"})
    assert read("epub", made, LIMITS).text() == "One."
    with pytest.raises(ExtractionError, match="All chapters"):
        read("epub", with_members(make_epub(["a"]), {"OPS/c0.xhtml": bytes(100)}), LIMITS)


def test_raised_digits_stay_raised_in_rtf_and_odt() -> None:
    assert rtf(r"10{\super -6} m\super 3\nosupersub 2 {\super 2\sub 3}4{\super 5\plain 6} 4{\super th}") == (
        "10⁻⁶ m³2 ²34⁵6 4th\n"
    )
    styles = (
        '<style:style style:name="S"><style:text-properties style:text-position="super 58%"/></style:style>'
        '<style:style style:name="P"><style:text-properties style:text-position="33% 58%"/></style:style>'
        '<style:style style:name="B"><style:text-properties style:text-position="-33% 58%"/></style:style>'
        '<style:style style:name="N"><style:text-properties style:text-position="0% 100%"/></style:style>'
    )
    span = '<text:span text:style-name="{}">{}</text:span>'
    body = "".join(span.format(*each) for each in ("S6", "P7", "B8", "N9"))
    made = make_open_document(
        styled(f"<text:p>10{body}{span.format('S', span.format('T', '1'))}2</text:p>", styles)
    )
    assert read("odt", made, LIMITS).text() == "10⁶⁷89¹2\n\n"


def test_bytes_that_are_not_shown_are_not_reported() -> None:
    draft = read(
        "rtf",
        b"{\\rtf1\\ansi\\ansicpg1252 Seen.{\\field{\\*\\fldinst ADDIN \x81\x8d}{\\fldrslt  Too.}}}",
        LIMITS,
    )
    assert (draft.text(), codes(draft)) == ("Seen. Too.\n", [])
    shown = read("rtf", b"{\\rtf1\\ansi\\ansicpg1252 Seen \x81.}", LIMITS)
    assert codes(shown) == ["characters_replaced"]


def test_characters_that_only_a_font_knows_are_read_or_reported() -> None:
    fonts = r"{\fonttbl{\f0 Standard Symbols L;}{\f1 OpenSymbol;}}"
    assert rtf(r"\f0 \u61613 ? \u61603 ?", head=fonts) == "↑ ≤\n"
    draft = read("rtf", f"{{\\rtf1{fonts}\\f1 a\\u57354 ?b}}".encode(), LIMITS)
    assert (draft.text(), codes(draft)) == ("a\ufffdb\n", ["characters_replaced"])
