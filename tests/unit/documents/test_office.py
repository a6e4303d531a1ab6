"""What readers of Office documents show, mark and leave out: docx, pptx, xlsx and their variants."""

# ruff: noqa: E501, RUF001  # markup

import io
import zipfile

import pytest

from document_support import ENTITY_BOMB, make_docx, make_xlsx, zipped
from formats.office_parts import (
    CHART,
    DIAGRAM,
    element,
    make_book,
    make_deck,
    make_word,
    paragraph,
    rows,
    shape,
    slide,
    strict,
)
from formats.old_formats import make_ole
from jobs.documents.kinds import (
    UploadHints,
    find_kind,
)
from jobs.states.document import DocumentKind
from worker.extract.__main__ import describe, read
from worker.extract.draft import ExtractionError, ExtractionLimits, TextBuilder
from worker.extract.office.number_formats import shown

LIMITS = ExtractionLimits(memory_bytes=2**30, seconds=10, max_pages=100, max_characters=100_000)


def text_of(data: bytes, kind: str = "docx") -> str:
    return read(kind, data, LIMITS).text()


def codes(draft: TextBuilder) -> list[object]:
    return [warning["code"] for warning in draft.warnings]


def rewritten(data: bytes, **replaced: bytes | None) -> bytes:
    """The package with other members, named with `__` for a slash; None removes one."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members: dict[str, str | bytes] = {name: archive.read(name) for name in archive.namelist()}
    for name, body in replaced.items():
        path = name.replace("__", "/").replace("_xml", ".xml")
        members.pop(path, None)
        if body is not None:
            members[path] = body
    return zipped(members)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((f"a.{each}", DocumentKind.DOCX) for each in ("docm", "dotx", "dotm")),
        *((f"a.{each}", DocumentKind.PPTX) for each in ("pptm", "ppsx", "ppsm", "potx", "potm")),
        *((f"a.{each}", DocumentKind.XLSX) for each in ("xlsm", "xltx", "xltm", "xlsb")),
        *((f"a.{each}", DocumentKind.ODP) for each in ("odp", "otp", "odg")),
    ],
)
def test_variants_have_the_kind_of_their_plain_form(name: str, kind: DocumentKind) -> None:
    assert find_kind(UploadHints(b"PK\x03\x04....", b"", name)) is kind


def test_the_main_part_may_have_another_name_and_a_path_with_backslashes() -> None:
    made = make_word(paragraph("Calm."), path="word/document2.xml")
    assert text_of(made) == "Calm.\n\n"
    with zipfile.ZipFile(io.BytesIO(made)) as archive:
        members = {name.replace("/", "\\"): archive.read(name) for name in archive.namelist()}
    assert text_of(zipped(members)) == "Calm.\n\n"


def test_strict_parts_are_read_like_others() -> None:
    comments = element("w:comments", f'<w:comment w:id="1" w:author="Ann">{paragraph("No.")}</w:comment>')
    body = paragraph('<w:r><w:t>Yes.</w:t></w:r><w:r><w:commentReference w:id="1"/></w:r>')
    made = make_word(body, {"c.xml": ("comments", comments)})
    with zipfile.ZipFile(io.BytesIO(made)) as archive:
        members = {name: strict(archive.read(name).decode()) for name in archive.namelist()}
    assert b"purl.oclc.org" in zipped(members) or "purl.oclc.org" in members["word/document.xml"]
    assert text_of(zipped(members)) == "Yes. [Comment by Ann: No.]\n\n"


def test_tracked_changes_show_what_the_document_says_now() -> None:
    gone, moved, mark = (
        "<w:del><w:r><w:delText>old </w:delText></w:r></w:del>",
        "<w:moveFrom><w:r><w:t>Away.</w:t></w:r></w:moveFrom>",
        "<w:rPr><w:moveFrom/></w:rPr>",
    )
    cell = f"<w:tc>{paragraph('row gone')}</w:tc>"
    body = (
        paragraph(f"<w:r><w:t>The </w:t></w:r>{gone}<w:ins><w:r><w:t>new rule</w:t></w:r></w:ins>")
        + paragraph(moved, properties=mark)
        + paragraph("One ", properties="<w:rPr><w:del/></w:rPr>")
        + paragraph("sentence.")
        + f"<w:tbl><w:tr><w:trPr><w:del/></w:trPr>{cell}</w:tr><w:tr><w:tc>{paragraph('kept')}</w:tc></w:tr></w:tbl>"
        + paragraph("<w:moveTo><w:r><w:t>Away.</w:t></w:r></w:moveTo>")
    )
    assert text_of(make_word(body)) == "The new rule\n\nOne sentence.\n\nkept\n\nAway.\n\n"


def numbered(number: str, level: int, text: str = "x") -> str:
    return paragraph(
        text, properties=f'<w:numPr><w:ilvl w:val="{level}"/><w:numId w:val="{number}"/></w:numPr>'
    )


def level(place: int, form: str, pattern: str, more: str = "") -> str:
    return f'<w:lvl w:ilvl="{place}"><w:start w:val="1"/><w:numFmt w:val="{form}"/>{more}<w:lvlText w:val="{pattern}"/></w:lvl>'


def test_lists_are_numbered_over_levels_with_restarts_letters_roman_numerals_and_bullets() -> None:
    numbering = element(
        "w:numbering",
        f'<w:abstractNum w:abstractNumId="0">{level(0, "decimal", "%1.")}{level(1, "decimal", "%1.%2.")}'
        f'{level(2, "lowerLetter", "(%3)")}</w:abstractNum><w:abstractNum w:abstractNumId="1">'
        f"{level(0, 'upperRoman', 'Article %1')}{level(1, 'decimal', '%1.%2', '<w:isLgl/>')}</w:abstractNum>"
        f'<w:abstractNum w:abstractNumId="2">{level(0, "bullet", "•")}</w:abstractNum>'
        '<w:num w:numId="1"><w:abstractNumId w:val="0"/></w:num><w:num w:numId="2"><w:abstractNumId w:val="0"/>'
        '<w:lvlOverride w:ilvl="0"><w:startOverride w:val="1"/></w:lvlOverride></w:num>'
        '<w:num w:numId="3"><w:abstractNumId w:val="1"/></w:num><w:num w:numId="4"><w:abstractNumId w:val="2"/></w:num>',
    )
    body = (
        numbered("1", 0)
        + numbered("1", 1)
        + numbered("1", 2)
        + numbered("1", 2)
        + numbered("1", 1)
        + numbered("1", 2)
        + paragraph("between")
        + numbered("1", 0)
        + numbered("1", 1)
        + numbered("2", 0)
        + numbered("3", 0)
        + numbered("3", 1)
        + numbered("4", 0)
        + numbered("9", 0)
    )
    lines = text_of(make_word(body, {"n.xml": ("numbering", numbering)})).split("\n\n")[:-1]
    assert lines == [
        *("1. x", "1.1. x", "(a) x", "(b) x", "1.2. x", "(a) x", "between", "2. x", "2.1. x", "1. x"),
        *("Article I x", "1.1 x", "- x", "x"),
    ]


def test_styles_number_headings() -> None:
    styles = element(
        "w:styles",
        '<w:style w:type="paragraph" w:styleId="H1"><w:name w:val="heading 1"/><w:pPr><w:numPr><w:numId w:val="1"/></w:numPr></w:pPr></w:style>'
        '<w:style w:type="paragraph" w:styleId="H2"><w:name w:val="heading 2"/><w:basedOn w:val="H1"/><w:pPr><w:numPr><w:ilvl w:val="1"/></w:numPr></w:pPr></w:style>'
        '<w:style w:type="paragraph" w:styleId="Titre3"><w:name w:val="mon titre"/><w:pPr><w:outlineLvl w:val="2"/></w:pPr></w:style>',
    )
    numbering = element(
        "w:numbering",
        f'<w:abstractNum w:abstractNumId="0">{level(0, "decimal", "%1")}{level(1, "decimal", "%1.%2")}</w:abstractNum>'
        '<w:num w:numId="1"><w:abstractNumId w:val="0"/></w:num>',
    )
    body = "".join(
        paragraph(text, properties=f'<w:pStyle w:val="{style}"/>')
        for style, text in (
            ("H1", "Scope"),
            ("H2", "Parts"),
            ("H2", "Dates"),
            ("H1", "Price"),
            ("Titre3", "Fin"),
        )
    )
    made = make_word(body, {"s.xml": ("styles", styles), "n.xml": ("numbering", numbering)})
    assert text_of(made).split("\n\n")[:-1] == [
        "# 1 Scope",
        "## 1.1 Parts",
        "## 1.2 Dates",
        "# 2 Price",
        "### Fin",
    ]


def test_notes_have_a_mark_at_their_place_and_their_text_after_the_body() -> None:
    notes = element(
        "w:footnotes",
        f'<w:footnote w:type="separator" w:id="0">{paragraph("sep")}</w:footnote>'
        f'<w:footnote w:id="2">{paragraph("Second.")}</w:footnote><w:footnote w:id="1">{paragraph("First.")}</w:footnote>',
    )
    ends = element("w:endnotes", f'<w:endnote w:id="1">{paragraph("End.")}</w:endnote>')
    body = paragraph(
        '<w:r><w:t>a</w:t></w:r><w:r><w:footnoteReference w:id="1"/></w:r><w:r><w:t> b</w:t></w:r>'
        '<w:r><w:footnoteReference w:id="2"/></w:r><w:r><w:endnoteReference w:id="1"/></w:r>'
    )
    made = make_word(body, {"f.xml": ("footnotes", notes), "e.xml": ("endnotes", ends)})
    assert text_of(made) == "a[1] b[2][3]\n\n[1] First.\n\n[2] Second.\n\n[3] End.\n\n"


def test_headers_and_footers_that_pages_show_are_there_once() -> None:
    def margin(kind: str, text: str) -> str:
        return element(f"w:{kind}", paragraph(text))

    references = (
        '<w:headerReference w:type="default" r:id="h1.xml"/><w:headerReference w:type="first" r:id="h2.xml"/>'
        '<w:footerReference w:type="default" r:id="f1.xml"/><w:footerReference w:type="even" r:id="f2.xml"/>'
    )
    parts = {
        "h1.xml": ("header", margin("hdr", "Case 4711")),
        "h2.xml": ("header", margin("hdr", "Not shown")),
        "f1.xml": ("footer", margin("ftr", "7")),
        "f2.xml": ("footer", margin("ftr", "Secret")),
    }
    section = f"<w:sectPr>{references}</w:sectPr>"
    made = make_word(paragraph("Body.", properties=section) + section, parts)
    assert text_of(made) == "[Header: Case 4711]\n\nBody.\n\n[Footer: Secret]\n\n"


@pytest.mark.parametrize(
    ("equation", "line"),
    [
        (
            "<m:f><m:num><m:r><m:t>a+b</m:t></m:r></m:num><m:den><m:r><m:t>2</m:t></m:r></m:den></m:f>",
            "(a+b)/2",
        ),
        ("<m:rad><m:deg/><m:e><m:r><m:t>x</m:t></m:r></m:e></m:rad>", "√(x)"),
        ("<m:rad><m:deg><m:r><m:t>3</m:t></m:r></m:deg><m:e><m:r><m:t>x</m:t></m:r></m:e></m:rad>", "∛(x)"),
        (
            '<m:nary><m:naryPr><m:chr m:val="∑"/></m:naryPr><m:sub><m:r><m:t>i=1</m:t></m:r></m:sub><m:sup><m:r><m:t>n</m:t></m:r></m:sup><m:e><m:r><m:t>i</m:t></m:r></m:e></m:nary>',
            "∑_(i=1)^n i",
        ),
        ("<m:sSub><m:e><m:r><m:t>x</m:t></m:r></m:e><m:sub><m:r><m:t>1</m:t></m:r></m:sub></m:sSub>", "x_1"),
        ("<m:d><m:e><m:r><m:t>a</m:t></m:r></m:e></m:d>", "(a)"),
        (
            "<m:func><m:fName><m:r><m:t>sin</m:t></m:r></m:fName><m:e><m:r><m:t>x</m:t></m:r></m:e></m:func>",
            "sin x",
        ),
    ],
)
def test_equations_are_a_line_of_text(equation: str, line: str) -> None:
    body = paragraph(f"<w:r><w:t>So</w:t></w:r><m:oMath>{equation}</m:oMath><w:r><w:t>.</w:t></w:r>")
    assert text_of(make_word(body)) == f"So {line}.\n\n"
    body = f"<a:p><a:r><a:t>So </a:t></a:r><m:oMath>{equation}</m:oMath></a:p>"
    assert text_of(make_deck([slide(shape(body))]), "pptx") == f"So {line}\n"


def test_ticks_are_shown_however_the_form_stores_them() -> None:
    body = (
        '<w:sdt><w:sdtPr><w14:checkbox><w14:checked w14:val="1"/></w14:checkbox></w:sdtPr><w:sdtContent><w:r><w:t>☒</w:t></w:r></w:sdtContent></w:sdt><w:r><w:t> yes</w:t></w:r>',
        '<w:sdt><w:sdtPr><w14:checkbox><w14:checked w14:val="0"/></w14:checkbox></w:sdtPr><w:sdtContent><w:r><w:t>☐</w:t></w:r></w:sdtContent></w:sdt><w:r><w:t> no</w:t></w:r>',
        '<w:r><w:fldChar><w:ffData><w:checkBox><w:default w:val="0"/><w:checked/></w:checkBox></w:ffData></w:fldChar></w:r><w:r><w:t> old</w:t></w:r>',
        '<w:r><w:fldChar><w:ffData><w:ddList><w:result w:val="1"/><w:listEntry w:val="A"/><w:listEntry w:val="B"/></w:ddList></w:ffData></w:fldChar></w:r>',
        '<w:r><w:sym w:font="Wingdings" w:char="F0FC"/></w:r><w:r><w:rPr><w:rFonts w:ascii="Wingdings"/></w:rPr><w:t>\uf0a8ü</w:t></w:r>',
        '<w:r><w:sym w:font="Symbol" w:char="F061"/></w:r>',
    )
    assert text_of(make_word("".join(map(paragraph, body)))).split("\n\n")[:-1] == [
        *("☑ yes", "☐ no", "☑ old", "B", "✓☐✓", "α"),
    ]


def test_an_unknown_symbol_leaves_a_mark_and_a_warning() -> None:
    draft = read("docx", make_word(paragraph('<w:r><w:sym w:font="Own Signs" w:char="F0FC"/></w:r>')), LIMITS)
    assert (draft.text().strip(), codes(draft)) == ("\ufffd", ["characters_replaced"])


def test_drawings_of_a_document_are_read_in_place() -> None:
    box = (
        "<mc:AlternateContent><mc:Choice><wps:txbx><w:txbxContent><w:p><w:r><w:t>In a box.</w:t></w:r></w:p>"
        "</w:txbxContent></wps:txbx></mc:Choice><mc:Fallback><w:p><w:r><w:t>In a box.</w:t></w:r></w:p></mc:Fallback>"
        "</mc:AlternateContent>"
    )
    body = (
        paragraph(f"<w:r><w:t>Before.</w:t></w:r><w:r>{box}</w:r>")
        + paragraph('<w:r><w:drawing><c:chart r:id="chart.xml"/></w:drawing></w:r>')
        + paragraph('<w:r><w:drawing><dgm:relIds r:dm="data.xml"/></w:drawing></w:r>')
        + paragraph('<w:r><w:object><o:OLEObject ProgID="Excel.Sheet.12" r:id="book.xlsx"/></w:object></w:r>')
        + paragraph('<w:r><w:object><o:OLEObject ProgID="Equation.3" r:id="old.bin"/></w:object></w:r>')
        + '<w:altChunk r:id="page.html"/>'
        + paragraph('<w:r><w:pict><v:textpath string="DRAFT"/></w:pict></w:r>')
    )
    parts: dict[str, tuple[str, str | bytes]] = {
        "chart.xml": ("chart", CHART),
        "data.xml": ("diagramData", DIAGRAM),
        "book.xlsx": ("package", make_xlsx({"a": [["b"]]})),
        "page.html": ("aFChunk", "<p>From <b>HTML</b>"),
    }
    draft = read("docx", make_word(body, parts), LIMITS)
    assert draft.text() == (
        "Before.\n\nIn a box.\n\n[Chart: Sales]\nCategory | North\nQ1 | 19.2%\nQ2 | 21.4%\n\n- Plan\n\nFrom HTML\n\nDRAFT\n\n"
    )
    assert [each.name for each in draft.attachments] == ["book.xlsx"]
    assert codes(draft) == ["parts_not_read", "attachments_separate"]


def test_a_packaged_file_is_attached_under_its_own_name() -> None:
    inner = b"\2\0note.txt\0C:\\note.txt\0\0\0\3\0\4\0\0\0C:\\x\5\0\0\0hello"
    native = len(inner).to_bytes(4, "little") + inner
    body = paragraph('<w:r><w:object><o:OLEObject ProgID="Package" r:id="o.bin"/></w:object></w:r>')
    made = make_word(body + paragraph("x"), {"o.bin": ("oleObject", make_ole({"\x01Ole10Native": native}))})
    assert [(each.name, each.data) for each in read("docx", made, LIMITS).attachments] == [
        ("note.txt", b"hello")
    ]


def test_hidden_text_is_read_and_reported() -> None:
    body = paragraph("<w:r><w:rPr><w:vanish/></w:rPr><w:t>secret</w:t></w:r><w:r><w:t> open</w:t></w:r>")
    draft = read("docx", make_word(body), LIMITS)
    assert (draft.text(), codes(draft)) == ("secret open\n\n", ["hidden_parts"])


@pytest.mark.parametrize("kind", ["styles", "numbering", "comments", "footnotes", "header"])
@pytest.mark.parametrize("damage", [b"<a><b>", b"", None, f"{ENTITY_BOMB}<a>&a9;</a>".encode()])
def test_a_damaged_part_is_left_out_and_named(kind: str, damage: bytes | None) -> None:
    section = '<w:sectPr><w:headerReference r:id="x.xml"/></w:sectPr>' if kind == "header" else ""
    made = make_word(paragraph("Kept.") + section, {"x.xml": (kind, "<a/>")})
    draft = read("docx", rewritten(made, word__x_xml=damage), LIMITS)
    assert (draft.text(), codes(draft)) == ("Kept.\n\n", ["parts_damaged"])


def test_a_body_that_breaks_off_is_read_up_to_there() -> None:
    made = make_docx()
    with zipfile.ZipFile(io.BytesIO(made)) as archive:
        whole = archive.read("word/document.xml")
    cut = whole[: whole.index(b"the weather") + 11]
    draft = read("docx", rewritten(made, word__document_xml=cut), LIMITS)
    assert "The first paragraph is about the weather" in draft.text()
    assert codes(draft) == ["parts_damaged"]
    with pytest.raises(ExtractionError, match="main part"):
        read("docx", rewritten(made, word__document_xml=b"no XML"), LIMITS)


def test_a_deck_shows_charts_diagrams_groups_tables_numbers_and_comments() -> None:
    automatic = '<a:p><a:pPr><a:buAutoNum type="{}"/></a:pPr><a:r><a:t>x</a:t></a:r></a:p>'
    shapes = (
        shape("Head", kind="title")
        + f"<p:grpSp><p:grpSp>{shape('In groups')}</p:grpSp></p:grpSp>"
        + shape(automatic.format("arabicPeriod") * 2 + automatic.format("alphaLcParenR"))
        + '<p:graphicFrame><c:chart r:id="chart.xml"/></p:graphicFrame><p:graphicFrame><dgm:relIds r:dm="data.xml"/></p:graphicFrame>'
        + '<p:graphicFrame><p:oleObj r:id="book.xlsx"/></p:graphicFrame>'
    )
    parts: dict[str, tuple[str, str | bytes]] = {
        "chart.xml": ("chart", CHART),
        "data.xml": ("diagramData", DIAGRAM),
        "book.xlsx": ("package", b"PK"),
        "old.xml": ("comments", element("p:cmLst", '<p:cm authorId="0"><p:text>Old.</p:text></p:cm>')),
        "new.xml": (
            "comments",
            element(
                "p188:cmLst",
                '<p188:cm authorId="{A}"><p188:txBody><a:p><a:r><a:t>New.</a:t></a:r></a:p></p188:txBody></p188:cm>',
            ),
        ),
        "a.xml": ("commentAuthors", element("p:cmAuthorLst", '<p:cmAuthor id="0" name="Ann"/>')),
        "b.xml": ("authors", element("p188:authorLst", '<p188:author id="{A}" name="Bob"/>')),
        "n.xml": (
            "notesSlide",
            element("p:notes", shape("7", kind="sldNum") + shape("Say this.", kind="body")),
        ),
    }
    draft = read("pptx", make_deck([slide(shapes), slide(shape("Two"), 'show="0"')], parts), LIMITS)
    first = draft.text()[: (draft.pages or [])[1]]
    assert first.split() == [
        "#",
        "Head",
        "In",
        "groups",
        "1.",
        "x",
        "2.",
        "x",
        "a)",
        "x",
        "[Chart:",
        "Sales]",
        "Category",
        "|",
        "North",
        "Q1",
        "|",
        "19.2%",
        "Q2",
        "|",
        "21.4%",
        "-",
        "Plan",
        "[Comment",
        "by",
        "Ann:",
        "Old.]",
        "[Comment",
        "by",
        "Bob:",
        "New.]",
        "Say",
        "this.",
    ]
    assert "[Hidden slide]\n\nTwo" in draft.text()
    assert [each.name for each in draft.attachments] == ["book.xlsx"]
    assert draft.warnings[0]["pages"] == [2]


def test_a_damaged_slide_is_left_out_and_named() -> None:
    draft = read("pptx", make_deck([slide(shape("One")), b"<p:sld>", slide(shape("Three"))]), LIMITS)
    assert draft.text().split() == ["One", "Three"]
    assert [(each["code"], each["pages"]) for each in draft.warnings] == [("parts_damaged", [2])]


def test_a_slide_that_breaks_off_is_read_up_to_there() -> None:
    broken = slide(shape("Kept") + shape("cut")).partition("cut")[0]
    draft = read("pptx", make_deck([broken]), LIMITS)
    assert (draft.text(), codes(draft)) == ("Kept\n", ["parts_damaged"])


def cell(address: str, value: str, attributes: str = "") -> str:
    return f'<s:c r="{address}" {attributes}><s:v>{value}</s:v></s:c>'


STYLED = 's="0"'


def inline(address: str, text: str) -> str:
    return f'<s:c r="{address}" t="inlineStr"><s:is><s:t>{text}</s:t></s:is></s:c>'


@pytest.mark.parametrize(
    ("value", "code", "line"),
    [
        (0.153, "0.0%", "15.3%"),
        (1, "0%", "100%"),
        (46095, "d/m/yy", "2026-03-14"),
        (46095, "dd\\.mm\\.yyyy;@", "2026-03-14"),
        (46095, "[$-407]mmmm yyyy", "2026-03"),
        (46095.395833333336, "yyyy-mm-dd h:mm", "2026-03-14 09:30"),
        (0.395833333333333, "h:mm AM/PM", "09:30"),
        (1.25, "[h]:mm", "30:00"),
        (1234.5, "#,##0.00 [$€-407]", "1,234.50 €"),
        (1234567.5, '#,##0.00\\ "EUR"', "1,234,567.50 EUR"),
        (-1234.5, "#,##0.00;(#,##0.00)", "(1,234.50)"),
        (-1234.5, '_-* #,##0.00 "€"_-;-* #,##0.00 "€"_-;_-* "-"?? "€"_-', "-1,234.50 €"),
        (0, '_-* #,##0.00 "€"_-;-* #,##0.00 "€"_-;_-* "-"?? "€"_-', "- €"),
        (-3, "$#,##0", "-$3"),
        (7, "00000", "00007"),
        (5551234, "000-0000", "555-1234"),
        (12_345_678, '0.0,,"M"', "12.3M"),
        (0.5, "# ?/?", "0.5"),
        (2, "0.##", "2"),
        (1.005, "0.00", "1.01"),
        (12, ";;;", "12"),
        (1, '"yes";;"no"', "yes"),
        (75, "[<100]0;[>=100]0.0", "75"),
        (0.1 + 0.2, "General", "0.3"),
        (1e20, "General", "1e+20"),
        (99_999_999_999, "yyyy-mm-dd", "99999999999"),
        (float("nan"), "0", "nan"),
    ],
)
def test_numbers_are_shown_by_their_format_and_dates_in_iso_8601(value: float, code: str, line: str) -> None:
    assert shown(value, code) == line


def test_days_count_from_1904_where_the_workbook_says_so() -> None:
    styles = element("s:styleSheet", '<s:cellXfs><s:xf numFmtId="14"/></s:cellXfs>')
    sheet = {"A": ("", rows(f"<s:row>{cell('A1', '44633', STYLED)}</s:row>"))}
    made = make_book(sheet, {"st.xml": ("styles", styles)}, properties='<s:workbookPr date1904="1"/>')
    assert text_of(made, "xlsx") == "# A\n\n2026-03-14\n"


def test_hidden_sheets_rows_and_columns_are_read_and_reported() -> None:
    body = rows(
        f'<s:row r="1">{inline("A1", "a")}</s:row><s:row r="2" hidden="1">{inline("B2", "b")}</s:row>'
        f'<s:row r="3" hidden="1">{inline("B3", "c")}</s:row>',
        before='<s:cols><s:col min="2" max="3" hidden="1"/></s:cols>',
    )
    sheets = {"Open": ("", body), "H": ('state="hidden"', rows("")), "V": ('state="veryHidden"', rows(""))}
    draft = read("xlsx", make_book(sheets), LIMITS)
    assert draft.text() == "# Open\n\na\n\tb\n\tc\n\n\n# H (hidden sheet)\n\n\n\n# V (hidden sheet)\n\n"
    assert [(each["message"], each["pages"]) for each in draft.warnings] == [
        ("Hidden parts of sheet Open were read as well: rows 2-3 and columns B-C.", [1]),
        ("Hidden sheets were read and marked: H, V.", [2, 3]),
    ]


def test_comments_of_cells_are_at_their_cell_or_after_the_rows() -> None:
    notes = element(
        "s:comments",
        "<s:authors><s:author>Ann</s:author><s:author>tc=1</s:author></s:authors><s:commentList>"
        '<s:comment ref="A1" authorId="0"><s:text><s:r><s:t>Ann:</s:t></s:r><s:r><s:t> wrong</s:t></s:r></s:text></s:comment>'
        '<s:comment ref="B1" authorId="1"><s:text><s:t>[Threaded comment] update Excel. Comment: right</s:t></s:text></s:comment>'
        '<s:comment ref="D9" authorId="0"><s:text><s:t>far</s:t></s:text></s:comment></s:commentList>',
    )
    threads = element(
        "t:ThreadedComments",
        '<t:threadedComment ref="B1" personId="{P}"><t:text>right</t:text></t:threadedComment>'
        '<t:threadedComment ref="B1" personId="{P}"><t:text>thanks</t:text></t:threadedComment>',
    )
    persons = element("t:personList", '<t:person id="{P}" displayName="Bob"/>')
    made = make_book(
        {"A": ("", rows(f"<s:row>{inline('A1', 'x')}{inline('B1', 'y')}</s:row>"))},
        {"p.xml": ("person", persons)},
        sheet_parts={"n.xml": ("comments", notes), "t.xml": ("threadedComment", threads)},
    )
    assert text_of(made, "xlsx") == (
        "# A\n\nx [Comment by Ann: wrong]\ty [Comment by Bob: right] [Comment by Bob: thanks]\n[D9] [Comment by Ann: far]\n"
    )


def test_formulas_without_a_value_are_shown_and_counted() -> None:
    body = rows(
        "<s:row><s:c r='A1'><s:f>1+1</s:f><s:v>2</s:v></s:c><s:c r='B1'><s:f t='shared' si='0' ref='B1:B2'>SUM(A1)</s:f></s:c>"
        "<s:c r='C1' t='str'><s:f>\"\"</s:f><s:v></s:v></s:c></s:row>"
        "<s:row><s:c r='B2'><s:f t='shared' si='0'/><s:v/></s:c></s:row>"
    )
    draft = read("xlsx", make_book({"A": ("", body)}), LIMITS)
    assert draft.text() == "# A\n\n2\t=SUM(A1)\n\t[formula as in B1]\n"
    assert codes(draft) == ["formulas_without_values"]
    assert ": 2 (sheets: A)" in str(draft.warnings[0]["message"])


def test_a_wide_gap_is_an_address() -> None:
    body = rows(f"<s:row>{inline('B1', 'a')}{inline('D1', 'b')}{inline('XFD1', 'c')}</s:row>")
    assert text_of(make_book({"A": ("", body)}), "xlsx") == "# A\n\n\ta\t\tb\t[XFD1] c\n"


def test_charts_and_text_boxes_of_sheets_are_after_the_rows() -> None:
    drawing = element(
        "xdr:wsDr",
        "<xdr:sp><xdr:txBody><a:p><a:r><a:t>Look</a:t></a:r></a:p></xdr:txBody></xdr:sp><xdr:graphicFrame><c:chart r:id='c1'/></xdr:graphicFrame>",
    )
    from formats.office_parts import relations

    made = make_book(
        {"A": ("", element("s:chartsheet", ""))},
        {"chart.xml": ("x", CHART), "_rels/d.xml.rels": ("x", relations({"c1": ("chart", "chart.xml")}))},
        sheet_parts={"d.xml": ("drawing", drawing)},
    )
    assert (
        text_of(made, "xlsx")
        == "# A\n\n[Text box] Look\n\n[Chart: Sales]\nCategory | North\nQ1 | 19.2%\nQ2 | 21.4%\n"
    )


@pytest.mark.parametrize(("path", "line"), [("st.xml", "0.153"), ("tx.xml", "15.3%"), ("n.xml", "15.3%")])
def test_a_damaged_part_of_a_workbook_leaves_the_values(path: str, line: str) -> None:
    styles = element("s:styleSheet", '<s:cellXfs><s:xf numFmtId="10"/></s:cellXfs>')
    formats = styles.replace('numFmtId="10"', 'numFmtId="164"').replace(
        "<s:cellXfs>", '<s:numFmts><s:numFmt numFmtId="164" formatCode="0.0%"/></s:numFmts><s:cellXfs>'
    )
    made = make_book(
        {"A": ("", rows(f"<s:row>{cell('A1', '0.153', STYLED)}</s:row>"))},
        {"st.xml": ("styles", formats), "tx.xml": ("sharedStrings", element("s:sst", ""))},
        sheet_parts={"n.xml": ("comments", element("s:comments", ""))},
    )
    draft = read("xlsx", rewritten(made, **{f"xl/{path}": b"<broken"}), LIMITS)
    assert (draft.text(), codes(draft)) == (f"# A\n\n{line}\n", ["parts_damaged"])


def test_a_damaged_sheet_is_read_up_to_the_damage_and_named() -> None:
    broken = rows(f"<s:row>{inline('A1', 'kept')}</s:row><s:row>{inline('A2', 'x')}").partition(
        '<s:row><s:c r="A2"'
    )[0]
    draft = read(
        "xlsx", make_book({"A": ("", broken), "B": ("", rows(f"<s:row>{inline('A1', 'b')}</s:row>"))}), LIMITS
    )
    assert draft.text() == "# A\n\nkept\n\n\n# B\n\nb\n"
    assert [(each["code"], each["pages"]) for each in draft.warnings] == [("parts_damaged", [1])]
    with pytest.raises(ExtractionError, match="All sheets"):
        read("xlsx", make_book({"A": ("", b"<x")}), LIMITS)


def test_raised_digits_stay_raised_in_docx_and_pptx() -> None:
    raised = "<w:r><w:rPr><w:vertAlign w:val='superscript'/></w:rPr><w:t>{}</w:t></w:r>"
    body = f"<w:p><w:r><w:t>10</w:t></w:r>{raised.format('-6')}<w:r><w:t> on the 4</w:t></w:r>{raised.format('th')}</w:p>"
    assert text_of(make_word(body)) == "10⁻⁶ on the 4th\n\n"
    run = "<a:r><a:t>10</a:t></a:r><a:r><a:rPr baseline='30000'/><a:t>6</a:t></a:r><a:r><a:rPr baseline='-25000'/><a:t>2</a:t></a:r>"
    made = shape("X").replace("<a:r><a:t>X</a:t></a:r>", run)
    assert "10⁶2" in text_of(make_deck([slide(made)]), "pptx")


PICTURE = (
    "<w:r><w:drawing><wp:inline xmlns:wp='http://schemas.openxmlformats.org/drawingml/2006/wordprocessingDrawing'>"
    "<wp:docPr id='1' name='Picture 1' descr='{}'/><a:graphic xmlns:a='http://schemas.openxmlformats.org/drawingml/2006/main'>"
    "<a:graphicData><pic:pic xmlns:pic='http://schemas.openxmlformats.org/drawingml/2006/picture'>"
    "<pic:nvPicPr><pic:cNvPr id='1' name='a.png' descr='{}'/></pic:nvPicPr></pic:pic></a:graphicData></a:graphic></wp:inline></w:drawing></w:r>"
)


@pytest.mark.parametrize(
    ("around", "own", "expected"),
    [
        ("Sales rise", "", "[Image: Sales rise]"),
        ("", "Sales rise", "[Image: Sales rise]"),
        ("Sales rise", "Sales rise", "[Image: Sales rise]"),
        ("C:\\My files\\chart 1.PNG", "", ""),
        ("https://example.org/chart", "", ""),
        ("", "", ""),
    ],
)
def test_descriptions_of_pictures_are_read_in_docx(around: str, own: str, expected: str) -> None:
    body = f"<w:p><w:r><w:t>See</w:t></w:r>{PICTURE.format(around, own)}</w:p>"
    assert text_of(make_word(body)) == f"See {expected}".strip() + "\n\n"


def test_descriptions_of_pictures_are_read_in_pptx() -> None:
    picture = "<p:pic><p:nvPicPr><p:cNvPr id='4' name='Picture 3' descr='{}'/></p:nvPicPr></p:pic>"
    made = make_deck([slide(picture.format("Sales rise") + picture.format("a.jpg"))])
    assert text_of(made, "pptx").strip() == "[Image: Sales rise]"


def test_a_document_of_nothing_but_files_names_them() -> None:
    embedded = "<p:graphicFrame><a:graphic><a:graphicData><p:oleObj r:id='a.docx'/></a:graphicData></a:graphic></p:graphicFrame>"
    made = make_deck([slide(embedded)], {"a.docx": ("package", b"PK")})
    with pytest.raises(ExtractionError, match=r"no text\. It has attached files"):
        describe(read("pptx", made, LIMITS), "")


def field_of(code: str, result: str = "") -> str:
    """The runs of a complex field."""
    return (
        '<w:r><w:fldChar w:fldCharType="begin"/></w:r>'
        f"{code if code.startswith('<') else f'<w:r><w:instrText>{code}</w:instrText></w:r>'}"
        f'<w:r><w:fldChar w:fldCharType="separate"/></w:r>{result}<w:r><w:fldChar w:fldCharType="end"/></w:r>'
    )


def test_fields_that_are_arguments_of_others_are_not_shown() -> None:
    inner = field_of("MERGEFIELD Sum", "<w:r><w:t>1200</w:t></w:r>")
    condition = (
        f"<w:r><w:instrText>IF </w:instrText></w:r>{inner}<w:r><w:instrText> &gt; 5</w:instrText></w:r>"
    )
    assert (
        text_of(make_word(paragraph(field_of(condition, "<w:r><w:t>Dear Ann</w:t></w:r>")))) == "Dear Ann\n\n"
    )
    contents = field_of(
        "TOC", f"<w:r><w:t>Scope </w:t></w:r>{field_of('PAGEREF a', '<w:r><w:t>2</w:t></w:r>')}"
    )
    assert text_of(make_word(paragraph(contents))) == "Scope 2\n\n"


def test_a_field_that_never_ends_hides_nothing() -> None:
    begun = '<w:r><w:fldChar w:fldCharType="begin"/></w:r><w:r><w:t>Kept.</w:t></w:r>'
    after = paragraph(field_of("REF a", "<w:r><w:t>clause 2</w:t></w:r>"))
    assert text_of(make_word(paragraph(begun) + after)) == "Kept.\n\nclause 2\n\n"


def test_fields_without_a_stored_result_show_what_readers_see() -> None:
    body = paragraph(field_of(r"EQ \f(a,b)") + field_of(r"EQ \r(3,x)") + field_of(r"SYMBOL 254 \f Wingdings"))
    assert text_of(make_word(body)) == "(a)/(b)(x)^(1/3)☑\n\n"


def test_texts_of_layout_and_master_are_read_once_and_their_placeholders_are_not() -> None:
    layout = element(
        "p:sldLayout",
        f"<p:cSld><p:spTree>{shape('Confidential')}{shape('Click', kind='title')}</p:spTree></p:cSld>",
    )
    made = make_deck([slide(shape("One")), slide(shape("Two"))], {"l.xml": ("slideLayout", layout)})
    assert text_of(made, "pptx") == "One\n[Background: Confidential]\n\n\nTwo\n"
    bare = make_deck([slide(shape("One"), 'showMasterSp="0"')], {"l.xml": ("slideLayout", layout)})
    assert text_of(bare, "pptx") == "One\n"


def test_hidden_shapes_are_read_with_a_warning() -> None:
    hidden = shape("Draft").replace("<p:nvSpPr>", '<p:nvSpPr><p:cNvPr id="2" name="a" hidden="1"/>')
    draft = read("pptx", make_deck([slide(hidden)]), LIMITS)
    assert (draft.text(), codes(draft)) == ("Draft\n", ["hidden_parts"])


def test_soft_hyphens_are_not_seen() -> None:
    assert text_of(make_word(paragraph("Donau\u00addampf"))) == "Donaudampf\n\n"
