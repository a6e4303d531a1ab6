"""Pages that are pictures: what OCR reads of them, what it says it cannot read, and where it stops."""

# ruff: noqa: RUF001  # a text in another alphabet

import io
import struct
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path

import pytest
import zstandard
from PIL import Image, ImageDraw, ImageFont, ImageOps
from pypdfium2 import PdfDocument

from document_support import make_pdf
from formats.drawn_pdf import DrawnPage, DrawnPdf, widget, words
from jobs.settings import DocumentSettings
from jobs.states.document import DocumentErrorCode, DocumentKind, DocumentWarningCode
from worker.documents.sandbox import ExtractedMessage, ExtractionFailure, Sandbox
from worker.extract.__main__ import read
from worker.extract.draft import ExtractionError, ExtractionLimits, OcrLimits
from worker.extract.pdf import scanned_text
from worker.extract.scans.ocr import PageReader, is_installed
from worker.extract.scans.reading_order import PageLine, arrange

needs_ocr = pytest.mark.skipif(not is_installed(), reason="`make test-ocr` installs the extra ocr")
SEA = ("The sea was calm on the first morning", "and the harbour lay in the autumn fog.")
SHIP = ("Nobody had seen the ship come in,", "for the pilots were all asleep.")


def picture(lines: Sequence[str]) -> Image.Image:
    drawn = Image.new("L", (760, 60 + 55 * len(lines)), 255)
    font = ImageFont.load_default(34)
    for number, line in enumerate(lines):
        ImageDraw.Draw(drawn).text((40, 30 + 55 * number), line, font=font, fill=0)
    return drawn


def saved(pages: Sequence[Image.Image], kind: str) -> bytes:
    out = io.BytesIO()
    first, *others = pages
    first.save(out, kind, **({"save_all": True, "append_images": others} if others else {}))
    return out.getvalue()


def unknown(lines: Sequence[str]) -> Image.Image:
    """Writing in a script that nobody reads: mirrored."""
    return ImageOps.mirror(picture(lines))


def run(
    data: bytes, kind: str, settings: DocumentSettings | None = None
) -> tuple[ExtractedMessage, str] | ExtractionFailure:
    sandbox = Sandbox(settings or DocumentSettings())
    outcome = sandbox.run([data], kind=DocumentKind(kind), num_bytes=len(data))
    if isinstance(outcome, ExtractionFailure):
        return outcome
    return outcome.found, zstandard.ZstdDecompressor().decompress(outcome.body).decode()


def extract(data: bytes, kind: str, settings: DocumentSettings | None = None) -> tuple[ExtractedMessage, str]:
    outcome = run(data, kind, settings)
    assert not isinstance(outcome, ExtractionFailure), outcome
    return outcome


def refusal(data: bytes, kind: str, settings: DocumentSettings | None = None) -> ExtractionFailure:
    outcome = run(data, kind, settings)
    assert isinstance(outcome, ExtractionFailure)
    return outcome


def warned(found: ExtractedMessage) -> dict[DocumentWarningCode, list[int] | None]:
    return {warning.code: warning.pages for warning in found.warnings}


@needs_ocr
def test_each_frame_of_a_tiff_is_a_page_that_says_whether_it_was_read() -> None:
    blank = Image.new("L", (400, 300), 250)
    upside_down = picture(SHIP).rotate(180)
    found, text = extract(saved([picture(SEA), unknown(SHIP), blank, upside_down], "TIFF"), "tiff")
    assert text == "\n".join(SEA) + "\n\n" + "\n".join(SHIP)
    assert found.pages is not None
    assert [text[at:].split("\n")[0] for at in (found.pages[0], found.pages[3])] == [SEA[0], SHIP[0]]
    assert warned(found) == {
        DocumentWarningCode.PAGES_READ_BY_OCR: [1, 4],
        DocumentWarningCode.PAGES_ILLEGIBLE: [2],
    }


@needs_ocr
def test_a_pdf_s_pages_without_text_are_read_by_ocr_and_its_others_are_not() -> None:
    from pypdf import PdfReader, PdfWriter

    writer = PdfWriter()
    for made in (make_pdf(["Typed."]), saved([picture(SEA)], "PDF"), make_pdf([""])):
        writer.append(PdfReader(io.BytesIO(made)))
    out = io.BytesIO()
    writer.write(out)
    found, text = extract(out.getvalue(), "pdf")
    assert text.strip() == "Typed.\n\n" + "\n".join(SEA)
    assert warned(found) == {
        DocumentWarningCode.PAGES_READ_BY_OCR: [2],
        DocumentWarningCode.PAGES_WITHOUT_TEXT: [3],
    }


@needs_ocr
def test_a_scan_with_a_stamp_and_typed_values_is_read_once() -> None:
    scanned = Image.new("L", (760, 1075), 255)
    scanned.paste(picture(SEA), (0, 100))
    shown = DrawnPage(
        "q 595 0 0 842 0 0 cm /Im1 Do Q\n" + words(460, 20, "ABC-000123"),
        [widget("Tx", "surname", "160 300 300 320", "/V (Okafor)")],
        picture=scanned.tobytes(),
        picture_size=scanned.size,
    )
    found, text = extract(DrawnPdf([shown]).written(), "pdf")
    assert text == "\n".join(["ABC-000123", *SEA, "surname: Okafor"])
    assert warned(found) == {DocumentWarningCode.PAGES_READ_BY_OCR: [1]}


@needs_ocr
def test_a_document_in_a_script_that_the_models_do_not_read_is_refused_not_guessed() -> None:
    refused = refusal(saved([unknown(SEA)], "JPEG"), "jpg")
    assert refused.code is DocumentErrorCode.ILLEGIBLE
    assert "Latin letters, Chinese and Japanese" in refused.message


@needs_ocr
def test_transparent_and_deep_pictures_are_read_like_any_other() -> None:
    transparent = Image.new("RGBA", picture(SEA).size)
    transparent.putalpha(ImageOps.invert(picture(SEA)))
    deep = picture(SHIP).convert("I").point(lambda shade: shade * 257).convert("I;16")
    assert extract(saved([transparent], "PNG"), "png")[1] == "\n".join(SEA)
    assert extract(saved([deep], "TIFF"), "tiff")[1] == "\n".join(SHIP)


@needs_ocr
def test_tesseract_reads_pages_that_the_models_do_not_where_it_is_installed() -> None:
    font = Path("/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf")
    if not font.exists() or not any(Path("/usr/share/tesseract-ocr").glob("*/tessdata/rus.traineddata")):
        pytest.skip("the packages tesseract-ocr-rus and fonts-dejavu-core are missing")
    russian = ("Все люди рождаются свободными", "и равными в своем достоинстве.")
    drawn = Image.new("L", (760, 200), 255)
    drawing = ImageDraw.Draw(drawn)
    drawing.multiline_text(
        (40, 40), "\n".join(russian), font=ImageFont.truetype(font, 34), fill=0, spacing=20
    )
    found, text = extract(saved([drawn], "PNG"), "png", DocumentSettings(ocr_tesseract="rus"))
    assert text.split() == " ".join(russian).split()
    assert warned(found) == {DocumentWarningCode.PAGES_READ_BY_OCR: [1]}
    refused = refusal(saved([unknown(SEA)], "PNG"), "png", DocumentSettings(ocr_tesseract="rus"))
    assert refused.code is DocumentErrorCode.ILLEGIBLE


@needs_ocr
def test_a_language_that_tesseract_lacks_leaves_a_page_illegible() -> None:
    missing = DocumentSettings(ocr_tesseract="none_such")
    assert refusal(saved([unknown(SEA)], "PNG"), "png", missing).code is DocumentErrorCode.ILLEGIBLE
    with pytest.raises(ValueError, match="ocr_tesseract"):
        DocumentSettings(ocr_tesseract="rus; ls")


@needs_ocr
def test_pages_beyond_the_limit_of_ocr_are_named() -> None:
    data = saved([picture(SEA), picture(SHIP)], "TIFF")
    found, text = extract(data, "tiff", DocumentSettings(ocr_max_pages=1))
    assert text.strip() == "\n".join(SEA)
    assert warned(found)[DocumentWarningCode.PAGES_WITHOUT_TEXT] == [2]
    late = refusal(data, "tiff", DocumentSettings(ocr_seconds=1e-6).model_copy(update={"ocr_seconds": -5}))
    assert late.code is DocumentErrorCode.TIMEOUT


@needs_ocr
def test_ocr_that_needs_more_memory_than_its_limit_is_ended() -> None:
    small = DocumentSettings().model_copy(update={"ocr_memory_mb": 200})
    assert refusal(saved([picture(SEA)], "PNG"), "png", small).code is DocumentErrorCode.OUT_OF_MEMORY


@needs_ocr
def test_a_picture_is_refused_by_the_size_it_declares_before_it_is_unpacked() -> None:
    refused = refusal(_png_of(100_000, 100_000), "png")
    assert (refused.code, "60,000,000" in refused.message) == (DocumentErrorCode.TOO_LARGE, True)
    many = saved([Image.new("1", (8, 8))] * 30, "TIFF")
    assert refusal(many, "tiff", DocumentSettings(max_pages=20)).code is DocumentErrorCode.TOO_MANY_PAGES


@needs_ocr
@pytest.mark.parametrize("kind", ["png", "jpg", "tiff"])
def test_a_damaged_picture_is_corrupt_and_an_empty_one_is_empty(kind: str) -> None:
    name = {"jpg": "JPEG"}.get(kind, kind.upper())
    whole = saved([picture(SEA)], name)
    assert refusal(whole[: len(whole) // 3], kind).code is DocumentErrorCode.CORRUPT
    assert refusal(saved([Image.new("L", (90, 90), 255)], name), kind).code is DocumentErrorCode.EMPTY


def test_pictures_are_refused_where_ocr_is_missing_or_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    data = saved([picture(SEA)], "PNG")
    limits = ExtractionLimits(2**30, 10, 10, 1000)
    monkeypatch.setitem(sys.modules, "rapidocr", None)
    with pytest.raises(ExtractionError, match=r"longbatch-server\[ocr\]") as refused:
        read("png", data, limits)
    assert refused.value.code == "missing_extra"
    if is_installed():
        return
    with pytest.raises(ExtractionError, match="scans with the extra `ocr`"):
        read("pdf", saved([picture(SEA)], "PDF"), limits)


@needs_ocr
def test_a_picture_says_so_where_ocr_is_switched_off() -> None:
    refused = refusal(saved([picture(SEA)], "PNG"), "png", DocumentSettings(ocr_max_pages=0))
    assert refused.code is DocumentErrorCode.UNSUPPORTED


def test_columns_are_read_one_after_the_other_and_rows_of_a_table_from_left_to_right() -> None:
    title = PageLine(0, 1000, 10, 20, "title")
    left = [PageLine(0, 460, 40 * n, 20, f"left {n}") for n in range(1, 6)]
    right = [PageLine(520, 1000, 40 * n + 3, 20, f"right {n}") for n in range(1, 6)]
    end = PageLine(0, 900, 310, 20, "end")
    texts = [line.text for line in (title, *left, *right, end)]
    assert arrange([end, *right, *left, title]) == texts
    cells = [PageLine(0, 80, 40 * n, 20, f"{n}") for n in range(1, 6)]
    assert arrange([*right, *cells]) == [f"{n} right {n}" for n in range(1, 6)]
    assert arrange([]) == []


def _png_of(width: int, height: int) -> bytes:
    """A PNG that declares so many pixels and has none."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = b""
    for name, body in ((b"IHDR", header), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")):
        chunks += struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
    return b"\x89PNG\r\n\x1a\n" + chunks


def test_pages_beyond_the_limits_are_not_even_drawn() -> None:
    """There may be thousands, and to draw them takes longer than the document may."""
    reader = PageReader(OcrLimits(2**30, 60, 2, 10**6), read=[1], illegible=[2])
    no_pages = PdfDocument.new()
    assert scanned_text(no_pages, 2, reader) == scanned_text(no_pages, 3, reader) == ""
    assert reader.skipped == [3, 4]
