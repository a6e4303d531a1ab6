"""Where quoted words are in a text, whatever white space, hyphens and typography lie between them.

Models copy words, not layouts: a line break becomes a space, a hyphen at the end of a line goes, a ligature
or a curly quotation mark is written plainly. So both sides are folded: without white space and hyphens, in
compatible forms of characters. A quote may leave words out where it says so, by three dots.
"""

import re
import unicodedata
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from io import StringIO
from typing import Final

# White space, hyphens and dashes, and characters without width; all that may differ between the same words.
_IGNORED: Final = re.compile("[\\s\u00ad\u200b-\u200d\u2060\ufeff\u2010-\u2015\u2212-]+")
_RUN: Final = re.compile("[^\\s\u00ad\u200b-\u200d\u2060\ufeff\u2010-\u2015\u2212-]+")
# Not with the white space around it: a long run of that would be searched once for each of its characters.
_OMISSION: Final = re.compile(r"[\[(]?(?:\.{3,}|\u2026)[\])]?")
_AROUND: Final = " \t\r\n\"'`\u2018\u2019\u201a\u201c\u201d\u201e\u00ab\u00bb"
_PLAIN: Final = str.maketrans(
    {
        "\u2018": "'",
        "\u2019": "'",
        "\u201a": "'",
        "\u201c": '"',
        "\u201d": '"',
        "\u201e": '"',
        "\u00ab": '"',
        "\u00bb": '"',
    }
)
# Of one quote. A letter is in a long text a million times, and a quote of it says nothing.
_MAX_PLACES: Final = 20_000


class QuotableText:
    """A text in which quotes are found; folding takes about half a second for ten million characters."""

    def __init__(self, text: str) -> None:
        self._text = text
        folded = StringIO()
        # Where each run of characters begins, in the folded text and in the text.
        self._folded_starts, self._starts = array("q"), array("q")
        length = 0
        for start, run in _runs(text):
            self._folded_starts.append(length)
            self._starts.append(start)
            folded.write(run)
            length += len(run)
        self._folded = folded.getvalue()

    def find(self, quote: str) -> tuple[int, int] | None:
        """Find the quoted words, from the first character up to the one after the last.

        Returns:
            None: they are not in the text, or there are none.
        """
        pieces = [piece for piece in map(fold, _OMISSION.split(quote.strip(_AROUND))) if piece]
        if not any(char.isalnum() for piece in pieces for char in piece):
            return None
        start, at, left = -1, 0, _MAX_PLACES
        for piece in pieces:
            found, left = self._find(piece, at, most=left)
            if found is None:
                return None
            start, at = (found if start < 0 else start), found + len(piece)
        return self._place(start), self._place(at - 1) + 1

    def _find(self, piece: str, begin: int, *, most: int) -> tuple[int | None, int]:
        """Find whole words in the folded text.

        Args:
            piece: the words, folded.
            begin: where to begin in the folded text.
            most: places to look at.

        Returns:
            Where they are, or None; and how many places are left to look at.
        """
        at = begin - 1
        for left in range(most - 1, -1, -1):
            at = self._folded.find(piece, at + 1)
            if at < 0:
                return None, left
            if self._is_whole(at, at + len(piece)):
                return at, left
        return None, 0

    def _is_whole(self, start: int, end: int) -> bool:
        """Return True if no word of the text is cut at these places of the folded text."""
        first, last = self._place(start), self._place(end - 1)
        before = self._text[first - 1 : first] if first else ""
        after = self._text[last + 1 : last + 2]
        cuts_begin = before.isalnum() and self._text[first].isalnum() and not _is_wide(before)
        cuts_end = after.isalnum() and self._text[last].isalnum() and not _is_wide(after)
        return not cuts_begin and not cuts_end

    def _place(self, folded: int) -> int:
        """Return the place in the text of a character of the folded text."""
        run = bisect_right(self._folded_starts, folded) - 1
        return self._starts[run] + folded - self._folded_starts[run]


def fold(text: str) -> str:
    """Return the text without all that may differ between the same words."""
    return "".join(run for _, run in _runs(text))


def pages_of(starts: Sequence[int], start: int, end: int) -> tuple[int, int] | None:
    """Return the first and last page of these characters; None without pages.

    Args:
        starts: the character at which each page starts.
        start: first character.
        end: the character after the last.
    """
    if not starts:
        return None
    first, last = (max(1, bisect_right(starts, each)) for each in (start, max(start, end - 1)))
    return first, last


def _runs(text: str) -> Iterator[tuple[int, str]]:
    """Yield the folded runs of characters, each with its place; a run has as many characters as the text."""
    for match in _RUN.finditer(text):
        run = match[0].translate(_PLAIN) if not match[0].isascii() else match[0]
        if run.isascii() or (plain := unicodedata.normalize("NFKC", run)) == run:
            yield match.start(), run
        elif len(plain) == len(run):
            yield match.start(), plain
        else:
            yield from _characters(match.start(), run)


def _characters(start: int, run: str) -> Iterator[tuple[int, str]]:
    """Yield each character by itself: with the marks that follow it, it may fold into fewer, or more."""
    at = 0
    while at < len(run):
        end = at + 1
        while end < len(run) and unicodedata.combining(run[end]):
            end += 1
        folded = _IGNORED.sub("", unicodedata.normalize("NFKC", run[at:end]))
        for place, char in enumerate(folded):
            yield start + min(at + place, end - 1), char
        at = end


def _is_wide(char: str) -> bool:
    """Return True for characters of scripts that write no spaces between words."""
    return unicodedata.east_asian_width(char) in "WF" or "\u0e00" <= char <= "\u0eff"
