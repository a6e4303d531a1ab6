"""Pages that are pictures with a little text of their own, such as a scan with a page number on it."""

import ctypes
from typing import Any, Final

from pypdfium2 import PdfDocument, PdfiumError, PdfPage, raw

_MOST_STAMPED: Final = 200  # characters: a court's header has 70, an envelope's number 55
_LEAST_LAYER: Final = 30  # characters of an invisible text that counts as what OCR once read
_LEAST_COVERED: Final = 0.7  # share of the page
_MOST_OBJECTS: Final = 1000  # a scan has a picture or a few strips
_INVISIBLE: Final = 3  # a mode of drawing text

_Picture = tuple[int, int, int]


def is_picture_with_a_stamp(pdf: PdfDocument, number: int, text: str) -> bool:
    """Return True if a picture covers the page, and its text is too little to be what the picture shows.

    Text that is invisible or below the picture is what OCR read of it, so it is not too little. A picture
    that a neighbouring page has too is a background.
    """
    num_chars = len("".join(text.split()))
    if not 0 < num_chars < _MOST_STAMPED:
        return False
    found = _pictures(pdf, number)
    if not found:
        return False
    pictures, has_layer = found
    if has_layer and num_chars >= _LEAST_LAYER:
        return False
    neighbours = (_pictures(pdf, each) for each in (number - 1, number + 1) if 0 <= each < len(pdf))
    return not any(pictures & each[0] for each in neighbours if each)


def is_picture(pdf: PdfDocument, number: int) -> bool:
    """Return True if pictures cover the page."""
    return _pictures(pdf, number) is not None


def without_text(page: PdfPage) -> None:
    """Remove the page's own text, so that OCR reads only the picture; the page is not to be kept."""
    texts = [each for each in _objects(page) if raw.FPDFPageObj_GetType(each) == raw.FPDF_PAGEOBJ_TEXT]
    for each in texts:
        if raw.FPDFPage_RemoveObject(page, each):
            raw.FPDFPageObj_Destroy(each)


def _pictures(pdf: PdfDocument, number: int) -> tuple[frozenset[_Picture], bool] | None:
    """Find the pictures that cover the page, and whether text is invisible or below one of them.

    Returns:
        None if pictures do not cover the page, or it cannot be read.
    """
    try:
        page = pdf[number]
    except PdfiumError:
        return None
    try:
        if raw.FPDFPage_CountObjects(page) > _MOST_OBJECTS:
            return None
        return _covering(page)
    finally:
        page.close()


def _covering(page: PdfPage) -> tuple[frozenset[_Picture], bool] | None:
    left, bottom, right, top = page.get_bbox()
    covered, pictures = 0.0, set()
    num_texts, has_layer = 0, False
    for each in _objects(page):
        kind = raw.FPDFPageObj_GetType(each)
        if kind == raw.FPDF_PAGEOBJ_TEXT:
            num_texts += 1
            has_layer = has_layer or raw.FPDFTextObj_GetTextRenderMode(each) == _INVISIBLE
        elif (picture := _picture_of(each, kind)) is not None:
            box = [ctypes.c_float() for _ in range(4)]
            raw.FPDFPageObj_GetBounds(each, *box)
            width = min(box[2].value, right) - max(box[0].value, left)
            height = min(box[3].value, top) - max(box[1].value, bottom)
            covered += max(0.0, width) * max(0.0, height)
            has_layer = has_layer or num_texts > 0
            pictures.add(picture)
    if covered < _LEAST_COVERED * max(1.0, (right - left) * (top - bottom)):
        return None
    return frozenset(pictures), has_layer


def _picture_of(each: Any, kind: int) -> _Picture | None:  # noqa: ANN401
    """Return the size in pixels and in bytes of a picture, or of the first one in a group."""
    if kind == raw.FPDF_PAGEOBJ_FORM:
        for number in range(min(raw.FPDFFormObj_CountObjects(each), _MOST_OBJECTS)):
            inner = raw.FPDFFormObj_GetObject(each, number)
            if inner and raw.FPDFPageObj_GetType(inner) == raw.FPDF_PAGEOBJ_IMAGE:
                return _picture_of(inner, raw.FPDF_PAGEOBJ_IMAGE)
        return None
    if kind != raw.FPDF_PAGEOBJ_IMAGE:
        return None
    width, height = ctypes.c_uint(), ctypes.c_uint()
    raw.FPDFImageObj_GetImagePixelSize(each, width, height)
    return width.value, height.value, raw.FPDFImageObj_GetImageDataRaw(each, None, 0)


def _objects(page: PdfPage) -> list[Any]:
    return [raw.FPDFPage_GetObject(page, number) for number in range(raw.FPDFPage_CountObjects(page))]
