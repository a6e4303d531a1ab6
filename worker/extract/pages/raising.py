"""Raised digits on a page, which PDFium puts on the line or on a line of their own."""

import re
from collections.abc import Sequence
from typing import Final

from pypdfium2 import PdfTextPage, raw

from worker.extract.office.marks import raised
from worker.extract.pages.placing import Glyph, Rectangle

_SMALL: Final = 0.85  # of the size of the letter before
_RAISED: Final = 0.15  # of the height of the letter before, from its bottom to the digit's
_NEAR: Final = 0.35  # heights between the letter and the digit
_SAME_LINE: Final = 0.1  # heights by which letters of one line may differ
_WORD_GAP: Final = 0.15  # heights between two words
_MOST_GAP: Final = 0.6
_MOST: Final = 12  # digits, and commas between them
_MOST_ADDED: Final = 4  # characters that PDFium puts between two, and the one before
_DIGITS: Final = frozenset("0123456789+-\u2212")
_BETWEEN: Final = frozenset(",\u2013")
_PAIR: Final = re.compile("\\S(?:\r\n)?(?=[0-9+\\-\u2212])")


def may_have_raised(found: PdfTextPage) -> bool:
    """Return True if a digit of the page is smaller than the character before it."""
    text = found.get_text_range(errors="replace")
    if len(text) != found.count_chars():  # positions differ, as for characters of two units
        return any(each in _DIGITS for each in text)
    return any(_is_raised_pair(found, pair.start(), pair.end()) for pair in _PAIR.finditer(text))


def _is_raised_pair(found: PdfTextPage, first: int, second: int) -> bool:
    """Return True if the second character is smaller than the first: sizes of fonts may be scaled later."""
    box = raw.FS_RECTF()
    if not raw.FPDFText_GetLooseCharBox(found, second, box):
        return False
    height = abs(box.top - box.bottom)
    raw.FPDFText_GetLooseCharBox(found, first, box)
    return bool(height < _SMALL * abs(box.top - box.bottom))


def with_raised(glyphs: Sequence[Glyph]) -> list[Glyph]:
    """Return the characters with raised digits as such, behind what they belong to: x², not x and 2."""
    result: list[Glyph] = []
    at = 0
    while at < len(glyphs):
        base = _last_seen(result)
        digits = _raised_at(glyphs, at, base) if base else []
        if base and digits:
            while result[-1].box is None:
                result.pop()
            text = raised("".join(digit.text for digit in digits))
            result += [Glyph(shown, digit.box) for shown, digit in zip(text, digits, strict=True)]
            at = _skip_break(glyphs, at + len(digits), base=base, result=result)
        elif base and glyphs[at].box is None:
            following = _skip_break(glyphs, at, base=base, result=result)
            result += glyphs[at : at + 1] if following == at else ()
            at = max(at + 1, following)
        else:
            result.append(glyphs[at])
            at += 1
    return result


def _last_seen(glyphs: Sequence[Glyph]) -> Rectangle | None:
    """Return the place of the last character that the page has; PDFium adds at most a few after it."""
    for glyph in reversed(glyphs[-_MOST_ADDED:]):
        if glyph.box is not None:
            return None if glyph.text.isspace() else glyph.box
    return None


def _raised_at(glyphs: Sequence[Glyph], at: int, base: Rectangle) -> list[Glyph]:
    """Return the digits that begin here and are raised above the character before; empty if they are not."""
    height = base.top - base.bottom
    found: list[Glyph] = []
    right = base.right
    for glyph in glyphs[at : at + _MOST + 1]:
        box = glyph.box
        if box is None or not (glyph.text in _DIGITS or (found and glyph.text in _BETWEEN)):
            break
        is_small = box.top - box.bottom < _SMALL * height
        is_raised = base.bottom + _RAISED * height < box.bottom < base.top
        if not (is_small and is_raised and abs(box.left - right) < _NEAR * height):
            break
        found.append(glyph)
        right = box.right
    while found and not found[-1].text.isdigit():  # hyphens may be of another font than the word
        found.pop()
    return found if len(found) <= _MOST else []


def _skip_break(glyphs: Sequence[Glyph], at: int, *, base: Rectangle, result: list[Glyph]) -> int:
    """Leave out a line end that PDFium puts within a line; return the place of what follows."""
    following = at
    while following < len(glyphs) and glyphs[following].box is None:
        following += 1
    added = "".join(glyph.text for glyph in glyphs[at:following])
    if "\n" not in added or following == len(glyphs):
        return at
    height, box, last = base.top - base.bottom, glyphs[following].box, result[-1].box
    if box is None or last is None or abs(box.bottom - base.bottom) > _SAME_LINE * height:
        return at
    gap = box.left - last.right
    if not -_WORD_GAP * height < gap < _MOST_GAP * height:
        return at
    if gap > _WORD_GAP * height:
        result.append(Glyph(" ", None))
    return following
