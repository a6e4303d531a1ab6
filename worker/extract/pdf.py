"""The text of PDFs, page by page."""

import re
from contextlib import suppress
from ctypes import c_double
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from pypdfium2 import PdfDocument, PdfiumError, PdfPage, PdfTextPage, raw

from worker.extract.draft import ExtractionError, TextBuilder, refuse_corrupt
from worker.extract.pages.annotations import Item, PageNotes, read_attachment, read_notes
from worker.extract.pages.columns import has_columns, reordered
from worker.extract.pages.pictures import is_picture, is_picture_with_a_stamp, without_text
from worker.extract.pages.placing import (
    Glyph,
    Rectangle,
    Value,
    place_values,
    rectangle,
    squeezed,
)
from worker.extract.pages.raising import may_have_raised, with_raised
from worker.extract.pages.xfa import is_xfa_alone, read_xfa
from worker.extract.scans.ocr import PageReader, is_installed

# PDFium's marks for a hyphen at a line's end whose word continues on the next line.
_HYPHENATION: Final = re.compile("[\x02\ufffe]\r?\n?")
_LONE_MARK: Final = re.compile("\x02(?![\r\n])")  # a glyph's number, which looks like a mark
# Numbers of glyphs that stand where the file says no letter; icon fonts alone use the private letters.
_LINE_ENDS: Final = frozenset({10, 13})
_LEVEL: Final = 0.01  # points
_NUMBERS: Final = re.compile("[\ufffd\x01\x03-\x08\x0b\x0e-\x1f]")
_PRIVATE: Final = re.compile("[\ue000-\uf8ff]")
_LEAST_PRIVATE: Final = 10  # characters; fewer are bullets and logos
_MOST_UNMAPPED: Final = 0.3  # share of a page's characters
_SAMPLE: Final = 200  # characters of a page that are looked at
_LONGEST_STAMP: Final = 1000  # characters of a page whose labels may all be in a picture, with spaces
# Fields; PDFium's time for each grows with their number: 4,000 take a second, 20,000 minutes. Later ones are
# read without it, from their own entries and appearances.
_END: Final = b"%%EOF"
_END_WITHIN: Final = 4096
_OBJECT: Final = re.compile(rb"(\d{1,9})\s{1,9}(\d{1,5})\s{1,9}obj\b")
_MOST_CATALOGUE: Final = 2000  # bytes of its entries before its type
_MOST_FIELDS: Final = 5000
_MOST_SCALE: Final = 200 / 72  # of a point: 200 dots per inch
_LONGEST_SIDE: Final = 2000  # pixels, of the picture that OCR reads
_LONGEST_NOTICE: Final = 1500  # characters of a page that asks to wait, or for another program
_WITHOUT_OCR: Final = "; the document may be scanned. The server reads scans with the extra `ocr`."


@dataclass(slots=True)
class _Seen:
    """What became of the pages, whose numbers are counted from 1.

    Attributes:
        blank: without text.
        damaged: that cannot be opened.
        pictures: with a picture over most of the page and little text of their own, not read by OCR.
        unmapped: whose letters have no meaning in the file, not read by OCR.
        hidden: fields with a value that their page does not show.
        drawings: pages with drawings by pen, or stamps that are pictures.
        recordings: pages with sounds or films.
        num_fields: fields and typed texts so far.
        attached: name and bytes of the files pinned to pages; None if they cannot be read.
    """

    blank: list[int] = field(default_factory=list)
    damaged: list[int] = field(default_factory=list)
    pictures: list[int] = field(default_factory=list)
    unmapped: list[int] = field(default_factory=list)
    hidden: list[int] = field(default_factory=list)
    drawings: list[int] = field(default_factory=list)
    recordings: list[int] = field(default_factory=list)
    num_fields: int = 0
    attached: list[tuple[str, bytes | None]] = field(default_factory=list)

    def take(self, number: int, notes: PageNotes) -> None:
        """Record what of a page's notes was not read."""
        self.num_fields += len(notes.items)
        for pages, count in (
            (self.hidden, notes.num_hidden),
            (self.drawings, notes.num_drawings),
            (self.recordings, notes.num_recordings),
        ):
            if count:
                pages.append(number)


def read_pdf(data: bytes, draft: TextBuilder) -> None:
    """Read a PDF, page by page in reading order; pages without text by OCR, if it is installed.

    Values of fields and text typed on a page are at their places, remarks at the page's end.
    """
    pdf = _open(data, draft)
    draft.announce_pages(len(pdf))
    if not len(pdf):
        refuse_corrupt("The PDF has no pages.")
    draft.set_title(pdf.get_metadata_value("Title"))
    reader = PageReader(draft.limits.ocr) if draft.limits.ocr.max_pages and is_installed() else None
    seen = _Seen()
    form = _prepare_form(pdf, draft)
    is_notice = bool(form) and _num_chars(pdf) < _LONGEST_NOTICE
    copy = _Copy(data)
    for number in range(len(pdf)):
        draft.begin_page()
        if pdf.formenv and seen.num_fields > _MOST_FIELDS:
            pdf.close_forms()
        if number == 0 and form:
            draft.write(form)
        _read_page(pdf, number, copy=copy, draft=draft, seen=seen, reader=reader, is_notice=is_notice)
    _attach_files(pdf, draft, seen)
    _report(draft, seen, reader)


def _prepare_form(pdf: PdfDocument, draft: TextBuilder) -> str:
    """Load the form's fields, so that pages know their values; return the text of one that no page shows.

    Raises:
        RefusedError: the document is such a form, and it has no text.
    """
    if is_xfa_alone(pdf):
        form = read_xfa(pdf)
        if not form and _num_chars(pdf) < _LONGEST_NOTICE:
            message = (
                "The PDF is an XFA form, which only Adobe's programs show. Print it to a PDF and send that."
            )
            raise ExtractionError("document_empty", message)
        if not form:
            draft.warn("form_not_readable", "The PDF has an XFA form that cannot be read; its pages were.")
        return form
    try:
        pdf.init_forms()
    except PdfiumError:
        draft.warn("form_not_readable", "The values of the PDF's form cannot be read.")
    return ""


def _num_chars(pdf: PdfDocument) -> int:
    """Count the characters of the first pages, up to those of a notice."""
    number = total = 0
    while number < len(pdf) and total < _LONGEST_NOTICE:
        total += len(_own_text(pdf, number) or "")
        number += 1
    return total


def _read_page(
    pdf: PdfDocument,
    number: int,
    *,
    copy: "_Copy",
    draft: TextBuilder,
    seen: _Seen,
    reader: PageReader | None,
    is_notice: bool,
) -> None:
    """Write the text of a page and of what lies on it."""
    page = _take_apart(pdf, number)
    if page is None:
        seen.damaged.append(number + 1)
        return
    own, glyphs, notes = page.own, page.glyphs, page.notes
    copy.read_drawn(number, notes)
    if is_notice:
        own, glyphs = "", []
    elif page.is_unmapped:
        if shown := scanned_text(pdf, number, reader):
            own, glyphs = shown, []
        else:
            seen.unmapped.append(number + 1)
    elif not own.strip() or is_picture_with_a_stamp(pdf, number, own):
        own, glyphs = _look_at(pdf, number, own=own, notes=notes, seen=seen, reader=reader), []
    elif page.has_numbers:
        seen.unmapped.append(number + 1)
    values = [
        Value(each.place.turned(page.quarters), each.text, is_tick=each.is_tick) for each in notes.items
    ]
    parts = [_letters(place_values(glyphs, values) if glyphs else own, has_numbers=page.has_numbers)]
    parts += [] if glyphs else [each.named for each in notes.items if each.text]
    draft.write("\n".join(part for part in (*parts, *notes.remarks) if part))
    seen.take(number + 1, notes)
    seen.attached += notes.attached


@dataclass(frozen=True, slots=True)
class _Page:
    """What a page has.

    Attributes:
        own: its own text.
        notes: what lies on it.
        glyphs: of its own text, in the order of reading; empty if PDFium's text is all that is needed.
        quarters: by which the page is shown turned clockwise.
        is_unmapped: the file does not give the letters of most of its text.
        has_numbers: it does not give some.
    """

    own: str
    notes: PageNotes
    glyphs: list[Glyph]
    quarters: int
    is_unmapped: bool
    has_numbers: bool


def _take_apart(pdf: PdfDocument, number: int) -> _Page | None:
    """Read what a page has; None if it is damaged."""
    try:
        page = pdf[number]
    except PdfiumError:
        return None
    try:
        found = page.get_textpage()
        try:
            own: str = found.get_text_bounded(errors="replace")
            notes = PageNotes()
            if raw.FPDFPage_GetAnnotCount(page) > 0:
                notes = read_notes(page, partial(_bounded, found), has_labels=len(own) > _LONGEST_STAMP)
            has_raised = may_have_raised(found)
            glyphs: list[Glyph] = []
            if has_columns(_boxes(page, found)):
                glyphs = reordered(_glyphs(page, found))
            elif notes.items or notes.stamps or has_raised:
                glyphs = _glyphs(page, found)
            if has_raised:
                glyphs = with_raised(glyphs)
            quarters = raw.FPDFPage_GetRotation(page)
            return _Page(own, notes, glyphs, quarters, _is_unmapped(found, own), _has_numbers(found, own))
        finally:
            found.close()
    except PdfiumError:
        return None
    finally:
        page.close()


def _letters(text: str, *, has_numbers: bool) -> str:
    """Join hyphenated words, and replace the numbers of glyphs."""
    if has_numbers:
        text = _NUMBERS.sub("\ufffd", _LONE_MARK.sub("\ufffd", text))
    return _HYPHENATION.sub("", text).strip()


def _has_notes(page: PdfPage) -> bool:
    return bool(raw.FPDFPage_GetAnnotCount(page) > 0)


def _look_at(
    pdf: PdfDocument, number: int, *, own: str, notes: PageNotes, seen: _Seen, reader: PageReader | None
) -> str:
    """Read a page that has no text or is a picture with little of it; return both texts."""
    shown = scanned_text(pdf, number, reader, is_bare=bool(own.strip() or notes.items or notes.stamps))
    if not shown and own.strip():
        seen.pictures.append(number + 1)
    elif not shown and (not notes.has_text or is_picture(pdf, number)):
        seen.blank.append(number + 1)
    is_repeated = squeezed(own) in squeezed(shown)
    return shown if is_repeated else f"{own.strip()}\n{shown}"


def _report(draft: TextBuilder, seen: _Seen, reader: PageReader | None) -> None:
    """Say which pages have no text, which were read by OCR, and what was left out."""
    blank, pictures = seen.blank, seen.pictures
    if reader is not None:
        reader.report(draft)
        told = {*reader.illegible, *reader.skipped}
        blank = [number for number in blank if number not in told]
        # A picture in which OCR finds no writing is a picture.
        pictures = []
    is_empty = not draft.text().strip()
    if is_empty and len(seen.damaged) == len(draft.pages or ()):
        refuse_corrupt("No page of the PDF can be read.")
    if is_empty and draft.attachments:
        draft.write(f"[Attached files: {', '.join(each.name for each in draft.attachments)}]")
    elif blank and is_empty:
        raise ExtractionError("document_empty", f"No page has text{_WITHOUT_OCR if reader is None else '.'}")
    maybe = "; they may be scanned" if reader is None else ""
    for code, pages, message in (
        ("pages_without_text", blank, f"{len(blank)} pages have no text{maybe}."),
        (
            "pages_without_text",
            pictures,
            f"pages whose picture was not read, with little text of their own: {len(pictures)}{maybe}.",
        ),
        ("parts_damaged", seen.damaged, f"damaged pages, not read: {len(seen.damaged)}."),
        (
            "characters_replaced",
            seen.unmapped,
            f"pages with letters to which the file gives no meaning: {len(seen.unmapped)}.",
        ),
        ("hidden_parts", seen.hidden, f"pages with hidden form fields, not read: {len(seen.hidden)}."),
        (
            "parts_not_read",
            seen.drawings,
            f"pages with drawings or picture stamps on top (handwriting?), not read: {len(seen.drawings)}.",
        ),
        (
            "parts_not_read",
            seen.recordings,
            f"pages with sounds or films, not read: {len(seen.recordings)}.",
        ),
    ):
        if pages:
            draft.warn(code, message[0].upper() + message[1:], pages)


def scanned_text(pdf: PdfDocument, number: int, reader: PageReader | None, *, is_bare: bool = False) -> str:
    """Read the page's picture; empty if it cannot be drawn, has no text, or is one too many.

    Args:
        pdf: the document.
        number: of the page, from 0.
        reader: of pictures; None if OCR is not installed.
        is_bare: leaves out the page's own text and what lies on it, which are read otherwise.
    """
    if reader is None or not reader.may_read(number + 1):
        return ""
    try:
        page = pdf[number]
    except PdfiumError:
        return ""
    try:
        if is_bare:
            without_text(page)
        longest = max(*page.get_size(), 1.0)
        scale = min(_MOST_SCALE, _LONGEST_SIDE / longest)
        bitmap = page.render(scale=scale, grayscale=True, draw_annots=not is_bare, may_draw_forms=not is_bare)
        picture = bitmap.to_pil()
    except (PdfiumError, ValueError):
        return ""
    finally:
        page.close()
    return reader.read_page(number + 1, picture)


def _open(data: bytes, draft: TextBuilder) -> PdfDocument:
    try:
        return PdfDocument(data)
    except PdfiumError as error:
        if error.err_code == raw.FPDF_ERR_PASSWORD:
            raise ExtractionError("document_encrypted", "The PDF needs a password.") from None
        if error.err_code == raw.FPDF_ERR_SECURITY:
            raise ExtractionError("document_encrypted", "The PDF uses an unknown encryption.") from None
        if (repaired := _with_trailer(data)) is not None:
            with suppress(PdfiumError):
                pdf = PdfDocument(repaired)
                if _num_chars(pdf):
                    draft.warn("parts_damaged", "The end of the PDF is missing: it may have had more.")
                    return pdf
        if _END not in data[-_END_WITHIN:]:
            refuse_corrupt("The PDF cannot be read: its end is missing, as after a broken download.")
        refuse_corrupt("The PDF cannot be read.")


def _with_trailer(data: bytes) -> bytes | None:
    """Return a PDF that lost its end with a new one, if its catalogue is left; None otherwise.

    PDFium finds the objects of such a file by itself, but not which of them is the first.
    """
    at = data.rfind(b"/Catalog")
    found = _OBJECT.findall(data[max(0, at - _MOST_CATALOGUE) : at]) if at >= 0 else []
    if not found:
        return None
    root = b" ".join(found[-1]) + b" R"
    return data + b"\nendstream\nendobj\ntrailer\n<</Root " + root + b">>\nstartxref\n0\n%%EOF\n"


def _own_text(pdf: PdfDocument, number: int) -> str | None:
    """Return the page's own text; None if the page cannot be read."""
    try:
        page = pdf[number]
    except PdfiumError:
        return None
    try:
        found = page.get_textpage()
        text: str = found.get_text_bounded(errors="replace")
        found.close()
    except PdfiumError:
        return None
    finally:
        page.close()
    return text


def _bounded(found: PdfTextPage, place: Rectangle) -> str:
    """Return the text within a rectangle."""
    text: str = found.get_text_bounded(place.left, place.bottom, place.right, place.top, errors="replace")
    return _HYPHENATION.sub("", text).strip()


def _boxes(page: PdfPage, found: PdfTextPage) -> list[Rectangle]:
    """Return the places of the page's pieces of text, as the page is shown."""
    quarters = raw.FPDFPage_GetRotation(page)
    return [Rectangle(*found.get_rect(number)).turned(quarters) for number in range(found.count_rects())]


def _glyphs(page: PdfPage, found: PdfTextPage) -> list[Glyph]:
    """Return the page's characters with their places, as the page is shown."""
    quarters = raw.FPDFPage_GetRotation(page)
    left, bottom, right, top = page.get_bbox()
    box = raw.FS_RECTF()
    glyphs: list[Glyph] = []
    breaks: list[
        Glyph
    ] = []  # line ends of PDFium, which its own text has only if the next character is not level
    x, y, level = c_double(), c_double(), None
    for position in range(raw.FPDFText_CountChars(found)):
        code = raw.FPDFText_GetUnicode(found, position)
        place = None
        if code in _LINE_ENDS and raw.FPDFText_IsGenerated(found, position):
            breaks.append(Glyph(chr(code), None))
            continue
        if not raw.FPDFText_IsGenerated(found, position) and raw.FPDFText_GetLooseCharBox(
            found, position, box
        ):
            place = rectangle(box)
            if place.right < left or place.left > right or place.top < bottom or place.bottom > top:
                continue
            place = place.turned(quarters)
        if breaks or level is None:
            raw.FPDFText_GetCharOrigin(found, position, x, y)
            if level is None or abs(y.value - level) > _LEVEL:
                glyphs += breaks
                level = y.value
            breaks.clear()
        if code:
            glyphs.append(Glyph(chr(code), place))
    return glyphs


def _is_unmapped(found: PdfTextPage, text: str) -> bool:
    """Return True if the file says for much of the page only which shapes to draw, not which letters."""
    num_chars = len("".join(text.split()))
    num_private = len(_PRIVATE.findall(text))
    if num_private >= _LEAST_PRIVATE and num_private > _MOST_UNMAPPED * num_chars:
        return True
    sample = range(0, found.count_chars(), max(1, found.count_chars() // _SAMPLE))
    num_unmapped = sum(raw.FPDFText_HasUnicodeMapError(found, position) == 1 for position in sample)
    return bool(num_unmapped > _MOST_UNMAPPED * len(sample))


def _has_numbers(found: PdfTextPage, text: str) -> bool:
    """Return True if some letters are only numbers of shapes; bullets of some programs are such by intent."""
    return bool(_NUMBERS.search(text)) and any(
        raw.FPDFText_HasUnicodeMapError(found, position) == 1 for position in range(found.count_chars())
    )


def _attach_files(pdf: PdfDocument, draft: TextBuilder, seen: _Seen) -> None:
    """Attach the files that the document holds, each once; name those that cannot be read."""
    for number in range(max(0, raw.FPDFDoc_GetAttachmentCount(pdf))):
        attached = raw.FPDFDoc_GetAttachment(pdf, number)
        if attached:
            seen.attached.append(read_attachment(attached))
    unread = [name for name, content in seen.attached if content is None]
    for name, content in dict.fromkeys(seen.attached):
        if content is not None:
            draft.attach(name, content)
    if unread:
        names = ", ".join(name or "unnamed" for name in unread)
        draft.warn("attachments_not_read", f"{len(unread)} attached files are damaged or too large: {names}")


@dataclass(slots=True)
class _Copy:
    """The document once more, in which what lies on a page is made part of its text.

    It is opened only for a page with something whose text is nowhere but in its appearance.
    """

    data: bytes
    pdf: PdfDocument | None = None

    def read_drawn(self, number: int, notes: PageNotes) -> None:
        """Read stamps, signatures and the like from their appearances."""
        if not notes.stamps and not any(item.is_drawn for item in notes.items):
            return
        found = self._flattened(number)
        notes.items = [
            replace(item, text=_added(found, item)) if item.is_drawn and found is not None else item
            for item in notes.items
        ]
        for stamp, remark in notes.stamps:
            text = _added(found, stamp) if found is not None else ""
            if text:
                notes.items.append(replace(stamp, text=f"[Stamp: {text}]"))
            elif remark:
                notes.remarks.append(remark)
            else:
                notes.num_drawings += 1
        if found is not None:
            found.close()

    def _flattened(self, number: int) -> PdfTextPage | None:
        """Return the text of the page with all that lies on it; None if that cannot be read."""
        try:
            self.pdf = self.pdf or PdfDocument(self.data)
            page = self.pdf[number]
            raw.FPDFPage_Flatten(page, raw.FLAT_NORMALDISPLAY)
            page.close()
            return self.pdf[number].get_textpage()
        except PdfiumError:
            return None


def _added(flattened: PdfTextPage, item: Item) -> str:
    """Return the text at a place that the page itself does not have."""
    own = squeezed(item.own)
    lines = (" ".join(line.split()) for line in _bounded(flattened, item.place).splitlines())
    return " ".join(line for line in lines if line and squeezed(line) not in own)
