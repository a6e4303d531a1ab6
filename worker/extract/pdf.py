"""The text of PDFs, page by page."""

import re
from typing import Final

from pypdfium2 import PdfDocument, PdfiumError, raw

from worker.extract.draft import ExtractionError, TextBuilder, refuse_corrupt

# PDFium's marks for a hyphen at a line's end whose word continues on the next line.
_HYPHENATION: Final = re.compile("[\x02\ufffe]\r?\n?")


def read_pdf(data: bytes, draft: TextBuilder) -> None:
    """Read a PDF, page by page in reading order."""
    pdf = _open(data)
    draft.announce_pages(len(pdf))
    if not len(pdf):
        refuse_corrupt("The PDF has no pages.")
    draft.set_title(pdf.get_metadata_value("Title"))
    blank: list[int] = []
    for number in range(len(pdf)):
        text = _page_text(pdf, number)
        draft.begin_page()
        draft.write(_HYPHENATION.sub("", text).strip())
        if not text.strip():
            blank.append(number + 1)
    if len(blank) == len(pdf):
        raise ExtractionError("document_empty", "No page has text; the document may be scanned.")
    if blank:
        draft.warn("pages_without_text", f"{len(blank)} pages have no text; they may be scanned.", blank)


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
