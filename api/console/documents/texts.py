"""A stretch of a document's text, cut where its pages begin."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from jobs import documents


@dataclass(frozen=True, slots=True)
class PageText:
    """What a stretch has of one page.

    Attributes:
        page: from 1; None: the document has no pages.
        begins: the page begins here; False: the stretch begins within it.
    """

    page: int | None
    text: str
    begins: bool


def cut_pages(body: bytes, pages: Sequence[int], *, start: int, end: int) -> list[PageText]:
    """Read the text from `start` up to `end`, page by page.

    Args:
        body: the text as it is stored.
        pages: the character at which each page starts; none for kinds without pages.
        start: first character.
        end: one past the last.
    """
    text = "".join(documents.iterate_text(body, start=start, end=end))
    if not pages:
        return [PageText(None, text, begins=start == 0)]
    end = start + len(text)
    first = max(1, bisect_right(pages, start))
    found: list[PageText] = []
    # Pages without text begin where the next one does: the last of them holds the text.
    for page in range(_first_at(pages, first, start), len(pages) + 1):
        begin = max(start, pages[page - 1])
        if begin >= end and found:
            break
        following = pages[page] if page < len(pages) else end
        piece = text[begin - start : max(begin, min(following, end)) - start]
        found.append(PageText(page, piece, begins=pages[page - 1] >= start))
    return found


def _first_at(pages: Sequence[int], page: int, start: int) -> int:
    """Return the first of the pages that begin where this one does, if that is at the start."""
    while page > 1 and pages[page - 1] == start and pages[page - 2] == start:
        page -= 1
    return page
