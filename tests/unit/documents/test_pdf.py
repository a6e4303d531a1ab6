"""What lies on the pages of PDFs: fields, remarks, attached files, pictures with little text."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from document_support import make_pdf
from formats.drawn_pdf import DrawnPage, DrawnPdf, appearance, note, stream, widget, words
from worker.extract.__main__ import read
from worker.extract.draft import ExtractionError, ExtractionLimits, TextBuilder

LIMITS = ExtractionLimits(memory_bytes=2**31, seconds=60, max_pages=5000, max_characters=10_000_000)
PHOTO = bytes(range(64))
WHOLE_PAGE = "q 595 0 0 842 0 0 cm /Im1 Do Q\n"


def read_pages(*pages: DrawnPage, **more: object) -> TextBuilder:
    return read("pdf", DrawnPdf(pages, **more).written(), LIMITS)  # type: ignore[arg-type]


def text_of(*pages: DrawnPage, **more: object) -> str:
    return read_pages(*pages, **more).text()


def codes(draft: TextBuilder) -> list[object]:
    return [warning["code"] for warning in draft.warnings]


def test_a_typed_value_follows_the_label_on_its_left() -> None:
    content = words(72, 700, "Family name:") + words(72, 660, "Town:") + words(72, 620, "Signed in ink")
    page = DrawnPage(
        content,
        [
            widget("Tx", "town", "160 655 300 675", "/V (Aarhus)"),
            widget("Tx", "name", "160 695 300 715", "/V (Okafor)"),
        ],
    )
    assert text_of(page) == "Family name: Okafor\nTown: Aarhus\nSigned in ink"


def test_two_fields_in_a_line_each_follow_their_label() -> None:
    content = words(72, 700, "First name:") + words(320, 700, "Last name:")
    page = DrawnPage(
        content,
        [
            widget("Tx", "a", "140 695 300 715", "/V (Ngozi)"),
            widget("Tx", "b", "390 695 500 715", "/V (Lee)"),
        ],
    )
    assert text_of(page) == "First name: Ngozi Last name: Lee"


def test_a_value_below_its_label_follows_it() -> None:
    content = words(72, 700, "First name") + words(320, 700, "Last name") + words(72, 600, "End")
    page = DrawnPage(
        content,
        [
            widget("Tx", "a", "72 672 300 692", "/V (Ngozi)"),
            widget("Tx", "b", "320 672 500 692", "/V (Lee)"),
        ],
    )
    assert text_of(page) == "First name Ngozi Last name\nLee\nEnd"


def test_a_table_of_fields_is_read_row_by_row() -> None:
    content = (
        words(72, 700, "Date") + words(220, 700, "Reason") + words(370, 700, "Sum") + words(72, 560, "End")
    )
    cells = [["1 May", "Taxi", "40"], ["2 May", "", "7"], ["3 May", "Bus", "3"]]
    fields = [
        widget(
            "Tx",
            f"c{row}{column}",
            f"{72 + 148 * column} {672 - 20 * row} {212 + 148 * column} {690 - 20 * row}",
            f"/V ({cells[row][column]})",
        )
        for row in range(3)
        for column in range(3)
    ]
    assert text_of(DrawnPage(content, fields)) == (
        "Date Reason Sum\n1 May\tTaxi\t40\n2 May\t\t7\n3 May\tBus\t3\nEnd"
    )


def test_a_line_to_write_on_gives_way_to_the_value() -> None:
    page = DrawnPage(
        words(72, 700, "Name: ______________________ (in capitals)"),
        [widget("Tx", "name", "110 695 262 715", "/V (OKAFOR)")],
    )
    assert text_of(page) == "Name: OKAFOR (in capitals)"


@pytest.mark.parametrize("state", ["Yes", "On", "1", "Ja", "Oui"])
def test_boxes_are_ticked_whatever_their_state_is_called(state: str) -> None:
    content = words(72, 700, "Half day?") + words(170, 700, "Yes") + words(230, 700, "No")
    page = DrawnPage(
        content,
        [
            widget("Btn", "a", "150 698 162 710", f"/V /{state} /AS /{state}"),
            widget("Btn", "b", "210 698 222 710", "/V /Off /AS /Off"),
        ],
    )
    assert text_of(page) == "Half day? [x] Yes [ ] No"


def test_a_box_after_its_label_stays_there() -> None:
    content = words(72, 700, "Smoker") + words(72, 680, "Driver")
    page = DrawnPage(
        content,
        [
            widget("Btn", "a", "125 698 137 710", "/V /On /AS /On"),
            widget("Btn", "b", "125 678 137 690", "/AS /Off"),
        ],
    )
    assert text_of(page) == "Smoker [x]\nDriver [ ]"


def test_a_box_whose_field_alone_was_set_is_ticked() -> None:
    states = "/AP << /N << /Agreed 11 0 R /Off 11 0 R >> >>"
    page = DrawnPage(
        words(90, 700, "I agree") + words(90, 680, "I do not"),
        [
            widget("Btn", "a", "72 698 84 710", f"/V /Agreed /AS /Off {states}"),
            widget("Btn", "b", "72 678 84 690", f"/AS /Off {states}"),
        ],
    )
    others = ["null", appearance("", 12, 12)]
    assert text_of(page, others=others, acroform="/NeedAppearances true") == "[x] I agree\n[ ] I do not"


def test_of_radio_buttons_the_chosen_one_is_ticked() -> None:
    def button(state: str, at: str, shown: str) -> str:
        return (
            f"<< /Type /Annot /Subtype /Widget /Parent 10 0 R /Rect [{at}] /F 4 /AS /{shown}"
            f" /AP << /N << /{state} 11 0 R /Off 11 0 R >> >> >>"
        )

    group = "<< /FT /Btn /Ff 32768 /T (pay) /V /card /Kids [13 0 R 14 0 R] >>"
    page = DrawnPage(
        words(90, 700, "Cash") + words(90, 680, "Card"),
        [button("cash", "72 698 84 710", "Off"), button("card", "72 678 84 690", "card")],
    )
    # Object 12 is the page, after which come its fields.
    assert text_of(page, others=[group, appearance("", 12, 12)], fields=[10]) == "[ ] Cash\n[x] Card"


def test_the_chosen_options_are_shown_as_the_list_shows_them() -> None:
    content = words(72, 700, "Country:") + words(72, 640, "Languages:") + words(72, 580, "Colour:")
    page = DrawnPage(
        content,
        [
            widget(
                "Ch", "a", "160 695 300 715", "/Ff 131072 /Opt [[(DK) (Denmark)] [(SE) (Sweden)]] /V (SE)"
            ),
            widget(
                "Ch", "b", "160 600 300 655", "/Ff 2097152 /Opt [(Danish) (Ewe) (Igbo)] /V [(Danish) (Igbo)]"
            ),
            widget("Ch", "c", "160 575 300 595", "/Ff 393216 /Opt [(Red) (Blue)] /V (Mauve)"),
        ],
    )
    assert text_of(page) == "Country: Sweden\nLanguages: Danish, Igbo\nColour: Mauve"


def test_lines_and_combs_are_read_as_they_were_typed() -> None:
    page = DrawnPage(
        words(72, 700, "Reason:") + words(72, 600, "Number:"),
        [
            widget("Tx", "a", "160 640 400 715", r"/Ff 4096 /V (We moved.\rThe van was late.)"),
            widget("Tx", "b", "160 595 400 615", "/Ff 16777216 /MaxLen 8 /V (20260314)"),
        ],
    )
    assert text_of(page) == "Reason: We moved.\nThe van was late.\nNumber: 20260314"


def test_a_value_that_the_page_also_draws_is_read_once() -> None:
    drawn = "".join(words(164 + 12 * at, 600, figure) for at, figure in enumerate("20260314"))
    page = DrawnPage(
        words(72, 700, "Name:") + words(164, 700, "Okafor") + words(72, 600, "Number:") + drawn,
        [
            widget("Tx", "a", "160 695 300 715", "/V (Okafor) /AP << /N 10 0 R >>"),
            widget("Tx", "b", "160 595 300 615", "/V (20260314)"),
        ],
    )
    text = text_of(page, others=[appearance("Okafor", 140, 20)])
    assert text.count("Okafor") == 1
    assert "".join(text.split()).count("20260314") == 1


def test_values_are_read_with_and_without_appearances() -> None:
    for acroform in ("", "/NeedAppearances true"):
        for drawn in ("", "/AP << /N 10 0 R >>"):
            page = DrawnPage(
                words(72, 700, "Name:"), [widget("Tx", "a", "160 695 300 715", f"/V (Okafor) {drawn}")]
            )
            text = text_of(page, others=[appearance("Okafor", 140, 20)], acroform=acroform)
            assert text == "Name: Okafor"


def test_one_field_on_two_pages_is_read_on_both() -> None:
    def shown(at: int) -> str:
        return f"<< /Type /Annot /Subtype /Widget /Parent 10 0 R /Rect [160 {at} 300 {at + 20}] /F 4 >>"

    group = "<< /FT /Tx /T (case) /V (Case 77) /Kids [12 0 R 15 0 R] >>"
    pages = [
        DrawnPage(words(72, 700, "Case:"), [shown(695)]),
        DrawnPage(words(72, 700, "Case:"), [shown(695)]),
    ]
    draft = read_pages(*pages, others=[group], fields=[10])
    assert draft.text() == "Case: Case 77\n\nCase: Case 77"
    assert draft.pages == [0, 15]


def test_passwords_and_hidden_fields_are_not_shown() -> None:
    page = DrawnPage(
        words(72, 700, "Password:") + words(72, 660, "Note:"),
        [
            widget("Tx", "a", "160 695 300 715", "/Ff 8192 /V (swordfish)"),
            widget("Tx", "b", "160 655 300 675", "/V (helper)").replace("/F 4", "/F 2"),
        ],
    )
    draft = read_pages(page)
    assert draft.text() == "Password:\nNote:"
    assert codes(draft) == ["hidden_parts"]


def test_captions_and_signatures_are_read_from_their_appearance() -> None:
    page = DrawnPage(
        words(72, 700, "Signature:"),
        [
            widget("Sig", "s", "160 695 400 715", "/AP << /N 10 0 R >>"),
            widget("Btn", "b", "160 600 300 620", "/Ff 65536 /AP << /N 11 0 R >>"),
        ],
    )
    others = [appearance("Signed by N. Okafor", 240, 20), appearance("Send the form", 140, 20)]
    text = text_of(page, others=others)
    assert text.startswith("Signature: Signed by N. Okafor")
    assert text.count("Send the form") == 1


def test_fields_that_the_form_does_not_list_are_read() -> None:
    page = DrawnPage(
        words(72, 700, "Name:") + words(90, 660, "Agreed"),
        [
            note("Widget", "160 695 300 715", "/Parent 10 0 R /FT /Tx /V (Okafor) /F 4"),
            note("Widget", "72 658 84 670", "/Parent 10 0 R /FT /Btn /AS /On /F 4"),
        ],
    )
    assert text_of(page, others=["<< >>"]) == "Name: Okafor\n[x] Agreed"


@pytest.mark.parametrize("turn", [90, 180, 270])
def test_values_are_at_their_place_on_turned_pages(turn: int) -> None:
    matrix = {90: "0 1 -1 0 595 0 cm", 180: "-1 0 0 -1 595 842 cm", 270: "0 -1 1 0 0 842 cm"}[turn]
    places = {
        90: ["120 160 140 300", "160 160 180 300"],
        180: ["295 702 435 722", "295 662 435 682"],
        270: ["455 542 475 682", "415 542 435 682"],
    }[turn]
    content = f"q {matrix} " + words(72, 460, "Name:") + words(72, 420, "Town:") + " Q"
    if turn == 180:
        content = f"q {matrix} " + words(72, 125, "Name:") + words(72, 165, "Town:") + " Q"
        places = ["295 702 435 722", "295 662 435 682"]
    page = DrawnPage(
        content,
        [widget("Tx", "a", places[0], "/V (Okafor)"), widget("Tx", "b", places[1], "/V (Aarhus)")],
        more=f"/Rotate {turn}",
    )
    text = text_of(page)
    assert "Name: Okafor" in text, text
    assert "Town: Aarhus" in text, text


def test_a_label_on_the_right_gets_its_value() -> None:
    page = DrawnPage(words(300, 700, "Name"), [widget("Tx", "a", "160 695 290 715", "/V (Okafor)")])
    assert text_of(page) == "Okafor Name"


def test_values_over_a_scan_are_named_by_their_fields() -> None:
    page = DrawnPage(
        WHOLE_PAGE,
        [widget("Tx", "surname", "160 695 300 715", "/V (Okafor) /TU (Family name)")],
        picture=PHOTO,
    )
    draft = read_pages(page)
    assert draft.text() == "Family name: Okafor"
    assert codes(draft) == ["pages_without_text"]


def test_text_typed_on_a_page_is_in_its_place() -> None:
    page = DrawnPage(
        words(72, 700, "Date:") + words(72, 660, "End"),
        [note("FreeText", "120 695 300 715", "/Contents (14 March 2026) /DA (/Helv 12 Tf)")],
    )
    assert text_of(page) == "Date: 14 March 2026\nEnd"


def test_text_that_only_an_appearance_has_is_read() -> None:
    page = DrawnPage(
        words(72, 700, "Date:") + words(72, 660, "End"),
        [note("FreeText", "120 695 300 715", "/DA (/Helv 12 Tf) /AP << /N 10 0 R >>")],
    )
    assert text_of(page, others=[appearance("14 March 2026", 180, 20)]) == "Date: 14 March 2026\nEnd"


def test_remarks_stand_at_the_end_of_their_page_once() -> None:
    quads = "/QuadPoints [72 712 122 712 72 698 122 698]"
    page = DrawnPage(
        words(72, 700, "The sum is 9,000 EUR."),
        [
            note("Highlight", "72 698 140 712", f"/Contents (Too much) /T (Ann) /Popup 14 0 R {quads}"),
            note("Popup", "300 600 400 700", "/Parent 13 0 R /Contents (Too much)"),
            note("Text", "300 700 320 720", "/Contents (Agreed) /T (Bo) /IRT 13 0 R"),
            note("StrikeOut", "72 698 140 712", f"/T (Ann) {quads}"),
            note("Underline", "72 698 140 712", f"/T (Ann) {quads}"),
            note("Text", "300 500 320 520", "/RC (<body><p>Rich &amp; long</p></body>)"),
        ],
    )
    text = text_of(page, DrawnPage(words(72, 700, "Page two")), others=["null"])
    assert text.split("\n") == [
        "The sum is 9,000 EUR.",
        "[Remark by Ann on “The sum”: Too much]",
        "[Reply by Bo: Agreed]",
        "[Struck out by Ann: “The sum”]",
        "[Remark: Rich & long]",
        "",
        "Page two",
    ]


def test_a_stamp_is_read_by_its_letters_or_its_name() -> None:
    page = DrawnPage(
        words(72, 700, "Invoice"),
        [
            note("Stamp", "300 695 400 715", "/AP << /N 10 0 R >>"),
            note("Stamp", "300 595 400 615", "/Name /NotApproved"),
        ],
    )
    text = text_of(page, others=[appearance("PAID 3 MAY", 100, 20)])
    assert "[Stamp: PAID 3 MAY]" in text
    assert "[Stamp: Not Approved]" in text


def test_handwriting_is_named_in_a_warning() -> None:
    ink = note("Ink", "72 600 200 650", "/InkList [[72 600 200 650]]")
    draft = read_pages(DrawnPage(words(72, 700, "Signed:"), [ink]))
    assert draft.warnings == [
        {
            "code": "parts_not_read",
            "message": "Pages with drawings or picture stamps on top (handwriting?), not read: 1.",
            "pages": [1],
        }
    ]


def test_files_in_a_pdf_are_attached() -> None:
    file = stream(b"The deadline moved to 3 May.", "/Type /EmbeddedFile")
    spec = "<< /Type /Filespec /F (note.txt) /UF (note.txt) /EF << /F 10 0 R >> >>"
    pinned = "<< /Type /Filespec /F (pin.txt) /EF << /F 10 0 R >> >>"
    page = DrawnPage(words(72, 700, "Cover"), [note("FileAttachment", "72 600 90 620", "/FS 12 0 R")])
    draft = read_pages(
        page, others=[file, spec, pinned], catalog="/Names << /EmbeddedFiles << /Names [(a) 11 0 R] >> >>"
    )
    assert sorted((each.name, each.data) for each in draft.attachments) == [
        ("note.txt", b"The deadline moved to 3 May."),
        ("pin.txt", b"The deadline moved to 3 May."),
    ]


def test_a_damaged_attached_file_is_named() -> None:
    spec = "<< /Type /Filespec /F (note.txt) /EF << /F 99 0 R >> >>"
    catalog = "/Names << /EmbeddedFiles << /Names [(a) 10 0 R] >> >>"
    draft = read_pages(DrawnPage(words(72, 700, "Cover")), others=[spec], catalog=catalog)
    assert draft.text() == "Cover"
    assert draft.warnings == [
        {
            "code": "attachments_not_read",
            "message": "1 attached files are damaged or too large: note.txt",
        }
    ]


def test_a_scan_with_a_number_on_it_is_no_page_with_text() -> None:
    stamped = DrawnPage(WHOLE_PAGE + words(500, 20, "ABC-000123"), picture=PHOTO)
    typed = DrawnPage(words(72, 700, "A page of text."))
    draft = read_pages(typed, stamped)
    assert codes(draft) == ["pages_without_text"]
    assert draft.warnings[0]["pages"] == [2]
    assert draft.text() == "A page of text.\n\nABC-000123"


@pytest.mark.parametrize("mode", ["3 Tr", "0 Tr"])
def test_the_text_below_a_scan_is_what_ocr_read_of_it(mode: str) -> None:
    layer = words(72, 700, f"The whole letter) Tj {mode} (, read by another program before, in full")
    content = f"{mode} " + layer + WHOLE_PAGE
    draft = read_pages(DrawnPage(content, picture=PHOTO))
    assert draft.warnings == []


def test_a_background_on_every_page_is_no_scan() -> None:
    slides = [DrawnPage(WHOLE_PAGE + words(72, 400, f"Slide {number}"), picture=PHOTO) for number in range(3)]
    assert read_pages(*slides).warnings == []


LEFT = """The harbour of the old town was
built by fishermen who needed
a place for their boats in the
winter. It was extended twice,
and each time the town grew a
little richer. Nobody remem-
bers today who drew the first
plan of it."""
RIGHT = """The bridge is younger. A rail-
way company paid for it when
the ferry could no longer take
all the passengers, and in the
end the ferry was sold to some
island in the north, where it
went on for thirty more years
without an accident."""


def by_row(left: str, right: str, gap: int = 250) -> str:
    rows = zip(left.split("\n"), right.split("\n"), strict=True)
    return "".join(
        words(72, 700 - 14 * number, first) + words(72 + gap, 700 - 14 * number, second)
        for number, (first, second) in enumerate(rows)
    )


def test_columns_of_prose_drawn_row_by_row_are_read_one_after_the_other() -> None:
    content = words(72, 740, "Two buildings of our town") + by_row(LEFT, RIGHT) + words(72, 500, "Page 7")
    text = text_of(DrawnPage(content))
    expected = f"Two buildings of our town {LEFT} {RIGHT} Page 7".replace("-\n", "")
    assert " ".join(text.split()) == " ".join(expected.split())


def test_short_columns_of_one_sentence_each_are_told_apart() -> None:
    data = (Path(__file__).parent / "cases" / "two-columns-by-row.pdf").read_bytes()
    assert " ".join(read("pdf", data, LIMITS).text().split()) == (
        "The left column begins the story of the bridge and ends with a toll."
        " The right column tells of the ferry that it replaced in nineteen ten."
    )


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (
            "\n".join(f"Item number {n} of the list" for n in range(8)),
            "\n".join(f"{n * 37},00 EUR" for n in range(8)),
        ),
        (
            "name\nplace of birth\nthe language spoken at home\ntown\nstreet and number\nsex\nage\njob",
            "the family name\nas in the passport\nnot that of school\nall\nno box\nas registered\nyears\nany",
        ),
        (
            "\n".join(f"Frau Doktor Nummer {n}" for n in range(8)),
            "\n".join(f"Sprechstunde am Tag {n}" for n in range(8)),
        ),
        (
            "the old house\nthe small dog\nthe new street\nthe red book",
            "das alte Haus\nder kleine Hund\ndie neue Gasse\ndas rote Buch",
        ),
        (
            "Width of it\nHeight of it\nWeight of it\nLength of it",
            "in metres\nin metres\nin pounds\nin metres",
        ),
    ],
)
def test_tables_stay_rows(left: str, right: str) -> None:
    rows = zip(left.split("\n"), right.split("\n"), strict=True)
    assert " ".join(text_of(DrawnPage(by_row(left, right))).split()) == " ".join(f"{a} {b}" for a, b in rows)


def test_an_xfa_form_is_read_from_its_template_and_data() -> None:
    template = """<template xmlns="http://www.xfa.org/schema/xfa-template/3.3/"><subform name="form1">
      <draw><value><text>Travel request</text></value></draw>
      <field name="name"><caption><value><text>Name:</text></value></caption><ui><textEdit/></ui></field>
      <field name="half"><caption><value><text>Half day</text></value></caption>
        <ui><checkButton/></ui><items><text>1</text><text>0</text></items></field>
      <field name="unit"><caption><value><text>Unit:</text></value></caption><ui><choiceList/></ui>
        <items><text>Finance</text><text>Sales</text></items>
        <items save="1"><text>F</text><text>S</text></items></field>
      <exclGroup name="pay">
        <field><caption><value><text>Cash</text></value></caption>
          <ui><checkButton/></ui><items><text>c</text></items></field>
        <field><caption><value><text>Card</text></value></caption>
          <ui><checkButton/></ui><items><text>k</text></items></field></exclGroup>
      <subform name="row" layout="row"><field name="day"/><field name="sum"/></subform>
      </subform></template>"""
    data = """<xfa:datasets xmlns:xfa="http://www.xfa.org/schema/xfa-data/1.0/"><xfa:data><form1>
      <name>Okafor</name><half>1</half><unit>S</unit><pay>k</pay>
      <row><day>1 May</day><sum>40</sum></row><row><day>2 May</day><sum>7</sum></row>
      <other>kept too</other></form1></xfa:data></xfa:datasets>"""
    others = [stream(template.encode()), stream(data.encode())]
    draft = read_pages(
        DrawnPage(words(72, 700, "Bitte warten...")),
        others=others,
        acroform="/XFA [(template) 10 0 R (datasets) 11 0 R]",
        catalog="/NeedsRendering true",
    )
    assert draft.text().split("\n") == [
        "Travel request",
        "Name: Okafor",
        "[x] Half day",
        "Unit: Sales",
        "[ ] Cash",
        "[x] Card",
        "1 May\t40",
        "2 May\t7",
        "other: kept too",
    ]


def test_an_xfa_form_that_cannot_be_read_is_refused() -> None:
    page = DrawnPage(words(72, 700, "Veuillez patienter..."))
    with pytest.raises(ExtractionError, match="XFA form") as refused:
        read_pages(page, others=[stream(b"<template")], acroform="/XFA [(template) 10 0 R]")
    assert refused.value.code == "document_empty"


def test_a_damaged_page_is_named() -> None:
    data = DrawnPdf([DrawnPage(words(72, 700, "One")), DrawnPage(words(72, 700, "Two"))]).written()
    at = data.rindex(b"<< /Type /Page ")
    draft = read("pdf", data[:at] + b"[" + data[at + 1 :], LIMITS)
    assert draft.text().strip() == "One"
    assert draft.warnings == [
        {"code": "parts_damaged", "message": "Damaged pages, not read: 1.", "pages": [2]}
    ]


@pytest.mark.parametrize("codes_of_glyphs", ["<00240025002600270028>", "<00010002000300040005>"])
def test_letters_without_a_meaning_are_reported(codes_of_glyphs: str) -> None:
    font = (
        "<< /Type /Font /Subtype /Type0 /BaseFont /Foo /Encoding /Identity-H /DescendantFonts [<< /Type /Font"
        " /Subtype /CIDFontType2 /BaseFont /Foo /CIDSystemInfo"
        " << /Registry (Adobe) /Ordering (Identity) /Supplement 0 >> >>] >>"
    )
    shapes = DrawnPage(f"BT /F2 12 Tf 72 700 Td {codes_of_glyphs} Tj ET")
    pages = [DrawnPage(words(72, 700, "A page of text.")), shapes]
    data = DrawnPdf(pages, others=[font]).written().replace(b"/F1 3 0 R >>", b"/F1 3 0 R /F2 10 0 R >>")
    draft = read("pdf", data, LIMITS)
    assert codes(draft) == ["characters_replaced"]
    assert draft.warnings[0]["pages"] == [2]


def test_a_lone_ligature_without_a_meaning_is_marked() -> None:
    data = (Path(__file__).parent / "cases" / "ligatures.pdf").read_bytes()
    draft = read("pdf", data.replace(b"/ToUnicode", b"/NoUnicode"), LIMITS)
    assert draft.text() == "\ufffdnal o\ufffdce \ufffdow"
    assert codes(draft) == ["characters_replaced"]


def test_a_blank_cover_of_attached_files_names_them() -> None:
    file = stream(b"The deadline moved to 3 May.", "/Type /EmbeddedFile")
    spec = "<< /Type /Filespec /F (note.txt) /EF << /F 10 0 R >> >>"
    catalog = "/Names << /EmbeddedFiles << /Names [(a) 11 0 R] >> >>"
    draft = read_pages(DrawnPage(""), others=[file, spec], catalog=catalog)
    assert draft.text() == "[Attached files: note.txt]"
    assert [each.name for each in draft.attachments] == ["note.txt"]


def test_bold_by_drawing_twice_is_read_once() -> None:
    page = DrawnPage(words(72, 700, "Total sum") + "BT /F1 12 Tf 72.3 700 Td (Total sum) Tj ET")
    assert text_of(page) == "Total sum"


def test_many_fields_are_read_in_time() -> None:
    fields = [
        widget(
            "Tx", f"f{n}", f"{n % 50 * 10} {n // 50 * 8} {n % 50 * 10 + 9} {n // 50 * 8 + 7}", f"/V (v{n})"
        )
        for n in range(5000)
    ]
    content = "".join(words(n % 50 * 10, n // 50 * 8, "ab", 4) for n in range(0, 5000, 2))
    text = text_of(DrawnPage(content, fields))
    assert "v4999" in text


def test_thousands_of_fields_on_many_pages_are_all_read() -> None:
    def shown(page: int, number: int) -> str:
        x, y = number % 20 * 28, 40 + number // 20 * 20
        return widget("Tx", f"f{page}x{number}", f"{x} {y} {x + 25} {y + 15}", f"/V (v{page}x{number})")

    pages = [
        DrawnPage(words(72, 20, "T"), [shown(page, number) for number in range(500)]) for page in range(13)
    ]
    found = set(text_of(*pages).split())
    assert found >= {f"v{page}x{number}" for page in range(13) for number in range(500)}


def test_a_place_that_is_no_number_breaks_nothing() -> None:
    page = DrawnPage(
        words(72, 700, "Name:"),
        [
            widget("Tx", "a", "-99999999999999999999999999999999999999999999 0 9e99 1e38", "/V (far)"),
            widget("Tx", "b", "160 695 300 715", "/V (Okafor)"),
        ],
    )
    assert "Name: Okafor" in text_of(page)


@pytest.mark.parametrize(
    ("drawn", "expected"),
    [
        ([(60, 700, "x", 12), (66.5, 705, "2", 8), (75, 700, "= 9 means x", 12)], "x² = 9 means x"),
        ([(60, 700, "10", 12), (73.5, 704, "-6", 7), (83, 700, "m", 12)], "10⁻⁶ m"),
        ([(60, 700, "8,935,112", 12), (110.5, 705, "3", 7)], "8,935,112³"),
        ([(60, 700, "benign.", 12), (97.5, 705, "2,4", 7), (112, 700, "New", 12)], "benign.²,⁴ New"),
        ([(60, 700, "THYR", 12), (93.3, 703, "-", 9), (97, 700, "4", 12)], "THYR-4"),
        ([(60, 700, "H", 12), (68.8, 697, "2", 8), (73.5, 700, "O", 12)], "H2O"),
        ([(60, 700, "4", 12), (67, 705, "th", 8)], "4th"),
        ([(60, 700, "Total", 12), (100, 700, "12", 8)], "Total 12"),
    ],
)
def test_raised_digits_stay_raised(drawn: Sequence[tuple[float, float, str, int]], expected: str) -> None:
    operators = "".join(words(x, y, text, size) for x, y, text, size in drawn)  # type: ignore[arg-type]
    assert "".join(text_of(DrawnPage(operators)).split()) == "".join(expected.split())


def test_letters_of_another_size_stay_on_their_line_next_to_fields() -> None:
    operators = words(60, 700, "a") + words(68, 700, "B", 30) + words(90, 700, "c")
    field = widget("Tx", "a", "300 300 400 320", "/V (7)")
    assert text_of(DrawnPage(operators, [field])) == "aBc\n7"


def test_a_drawn_text_of_a_field_without_a_value_is_read() -> None:
    page = DrawnPage(
        words(72, 700, "Total:") + words(72, 660, "Tax:"),
        [
            widget("Tx", "t", "160 695 300 715", "/AP << /N 10 0 R >>"),
            widget("Tx", "u", "160 655 300 675"),
        ],
    )
    assert text_of(page, others=[appearance("4711.00", 140, 20)]) == "Total: 4711.00\nTax:"


def test_a_pdf_that_lost_its_end_is_read_as_far_as_it_goes() -> None:
    whole = make_pdf(["First page here.", "Second page here."])
    draft = read("pdf", whole[: whole.rindex(b"xref\n", 0, whole.rindex(b"startxref"))], LIMITS)
    assert draft.text().split() == ["First", "page", "here.", "Second", "page", "here."]
    assert codes(draft) == ["parts_damaged"]
    with pytest.raises(ExtractionError, match="its end is missing"):
        read("pdf", whole[: len(whole) // 4], LIMITS)
