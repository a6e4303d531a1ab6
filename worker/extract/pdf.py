"""The text of PDFs, page by page."""

import re
from typing import Final

from pypdfium2 import PdfDocument, PdfiumError, raw

from worker.extract.draft import ExtractionError, TextBuilder, refuse_corrupt
from worker.extract.scans.ocr import PageReader, is_installed

# PDFium's marks for a hyphen at a line's end whose word continues on the next line.
_HYPHENATION: Final = re.compile("[\x02\ufffe]\r?\n?")
_MOST_SCALE: Final = 200 / 72  # of a point: 200 dots per inch
_LONGEST_SIDE: Final = 2000  # pixels, of the picture that OCR reads
_WITHOUT_OCR: Final = "; the document may be scanned. The server reads scans with the extra `ocr`."


def read_pdf(data: bytes, draft: TextBuilder) -> None:
    """Read a PDF, page by page in reading order; pages without text by OCR, if it is installed."""
    pdf = _open(data)
    draft.announce_pages(len(pdf))
    if not len(pdf):
        refuse_corrupt("The PDF has no pages.")
    draft.set_title(pdf.get_metadata_value("Title"))
    reader = PageReader(draft.limits.ocr) if draft.limits.ocr.max_pages and is_installed() else None
    blank: list[int] = []
    for number in range(len(pdf)):
        text = _page_text(pdf, number)
        draft.begin_page()
        draft.write(_HYPHENATION.sub("", text).strip())
        if not text.strip():
            shown = scanned_text(pdf, number, reader)
            draft.write(shown)
            if not shown:
                blank.append(number + 1)
    _report(draft, blank, reader)


def _report(draft: TextBuilder, blank: list[int], reader: PageReader | None) -> None:
    """Say which pages have no text, and which were read by OCR."""
    if reader is not None:
        reader.report(draft)
        blank = [number for number in blank if number not in {*reader.illegible, *reader.skipped}]
    if blank and not draft.text().strip():
        raise ExtractionError("document_empty", f"No page has text{_WITHOUT_OCR if reader is None else '.'}")
    if blank:
        maybe = "; they may be scanned" if reader is None else ""
        draft.warn("pages_without_text", f"{len(blank)} pages have no text{maybe}.", blank)


def scanned_text(pdf: PdfDocument, number: int, reader: PageReader | None) -> str:
    """Read the page's picture; empty if it cannot be drawn, has no text, or is one too many."""
    if reader is None or not reader.may_read(number + 1):
        return ""
    try:
        page = pdf[number]
    except PdfiumError:
        return ""
    try:
        longest = max(*page.get_size(), 1.0)
        scale = min(_MOST_SCALE, _LONGEST_SIDE / longest)
        bitmap = page.render(scale=scale, grayscale=True)
        picture = bitmap.to_pil()
    except (PdfiumError, ValueError):
        return ""
    finally:
        page.close()
    return reader.read_page(number + 1, picture)


def _open(data: bytes) -> PdfDocument:
    try:
        return PdfDocument(data)
    except PdfiumError as error:
        if error.err_code == raw.FPDF_ERR_PASSWORD:
            raise ExtractionError("document_encrypted", "The PDF needs a password.") from None
        if error.err_code == raw.FPDF_ERR_SECURITY:
            raise ExtractionError("document_encrypted", "The PDF uses an unknown encryption.") from None
        refuse_corrupt("The PDF cannot be read.")


def _page_text(pdf: PdfDocument, number: int) -> str:
    """Return the text of one page; empty if the page cannot be read."""
    try:
        page = pdf[number]
    except PdfiumError:
        return ""
    try:
        found = page.get_textpage()
        text: str = found.get_text_bounded(errors="replace")
        found.close()
    except PdfiumError:
        return ""
    finally:
        page.close()
    return text
