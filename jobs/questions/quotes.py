"""Where quoted words are in a text, whatever white space, hyphens and typography lie between them.

Models copy words, not layouts: a line break becomes a space, a hyphen at the end of a line goes, a ligature
or a curly quotation mark is written plainly. So both sides are folded: without white space and hyphens, in
compatible forms of characters. A quote may leave words out where it says so, by three dots.

Documents come from strangers, and what is quoted too, since a document can tell a model what to quote. So
there are bounds: to what folding costs, to where a quote is looked for, and to what it may leave out.
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
# Folded characters, about a page: a statement stitched from words of a whole book is not in the book.
_MOST_LEFT_OUT: Final = 2000
# Characters that are normalized together, and marks on one letter: normalizing takes the square of the number
# of marks in a row. Text that is safe for streams (UAX 15) has at most 30.
_PIECE_CHARS: Final = 200
_MOST_MARKS: Final = 30
_MOST_FOLDED: Final = 4  # characters from one; U+FDFA would be 18
_MOST_CLUSTERS: Final = 2_000_000  # folded one by one, which takes 2 s; what follows stays as it is


class QuotableText:
    """A text in which quotes are found; folding takes about half a second for ten million characters."""

    def __init__(self, text: str) -> None:
        self._text = text
        folded = StringIO()
        # Where each run of characters begins in the folded text, and where it begins and ends in the text.
        self._folded_starts, self._starts, self._ends = array("I"), array("I"), array("I")
        length = 0
        for start, end, run in _runs(text):
            self._folded_starts.append(length)
            self._starts.append(start)
            self._ends.append(end)
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
        tries = iter(range(_MAX_PLACES))
        start = self._find(pieces[0], 0, tries)
        while start is not None:
            end = self._follow(pieces[1:], start + len(pieces[0]), tries)
            if end is not None:
                return self._place(start), self._end(end - 1)
            start = self._find(pieces[0], start + 1, tries)
        return None

    def _follow(self, pieces: Sequence[str], at: int, tries: Iterator[int]) -> int | None:
        """Find these pieces one after the other from here on; return the end of the last."""
        for piece in pieces:
            found = self._find(piece, at, tries, end=at + _MOST_LEFT_OUT + len(piece))
            if found is None:
                return None
            at = found + len(piece)
        return at

    def _find(self, piece: str, begin: int, tries: Iterator[int], *, end: int | None = None) -> int | None:
        """Find whole words in the folded text, as long as there are tries left."""
        at = begin - 1
        for _ in tries:
            at = self._folded.find(piece, at + 1, end)
            if at < 0:
                return None
            if self._is_whole(at, at + len(piece)):
                return at
        return None

    def _is_whole(self, start: int, end: int) -> bool:
        """Return True if no word of the text is cut at these places of the folded text."""
        first, last, behind = self._place(start), self._place(end - 1), self._end(end - 1)
        before = self._text[first - 1 : first] if first else ""
        after = self._text[behind : behind + 1]
        cuts_begin = before.isalnum() and self._text[first].isalnum() and not _is_wide(before)
        cuts_end = after.isalnum() and self._text[last].isalnum() and not _is_wide(after)
        return not cuts_begin and not cuts_end

    def _place(self, folded: int) -> int:
        """Return the place in the text of a character of the folded text."""
        run = self._run(folded)
        # A character that folds into several is a run of its own, shorter than what it folds into.
        return min(self._starts[run] + folded - self._folded_starts[run], self._ends[run] - 1)

    def _end(self, folded: int) -> int:
        """Return the place in the text after a character of the folded text, and after its marks."""
        run = self._run(folded)
        next_run = self._folded_starts[run + 1] if run + 1 < len(self._starts) else len(self._folded)
        return self._ends[run] if folded + 1 == next_run else self._place(folded) + 1

    def _run(self, folded: int) -> int:
        return bisect_right(self._folded_starts, folded) - 1


def fold(text: str) -> str:
    """Return the text without all that may differ between the same words."""
    return "".join(run for _, _, run in _runs(text))


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


def _runs(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield the folded runs of characters, each with where it begins and ends in the text."""
    num_left = _MOST_CLUSTERS
    for match in _RUN.finditer(text):
        if match[0].isascii():
            yield match.start(), match.end(), match[0]
            continue
        for start, piece in _pieces(match[0].translate(_PLAIN), match.start()):
            plain = unicodedata.normalize("NFKC", piece) if num_left > 0 else piece
            if len(plain) == len(piece):
                yield start, start + len(piece), plain
            else:
                num_left -= len(piece)
                yield from _clusters(start, piece)


def _pieces(run: str, start: int) -> Iterator[tuple[int, str]]:
    """Cut a run into pieces that normalize in little time, not between a letter and its marks."""
    at = 0
    while at < len(run):
        end = min(at + _PIECE_CHARS, len(run))
        end = _after_marks(run, end)
        yield start + at, run[at:end]
        at = end


def _clusters(start: int, piece: str) -> Iterator[tuple[int, int, str]]:
    """Yield each letter with its marks by itself: it may fold into fewer characters, or more."""
    at = 0
    while at < len(piece):
        end = _after_marks(piece, at + 1)
        folded = _IGNORED.sub("", unicodedata.normalize("NFKC", piece[at:end]))
        if folded:
            is_short = len(folded) <= _MOST_FOLDED * (end - at)
            yield start + at, start + end, folded if is_short else piece[at:end]
        at = end


def _after_marks(run: str, at: int) -> int:
    """Return the place after the marks that follow here, if they are not too many."""
    most = min(at + _MOST_MARKS, len(run))
    while at < most and unicodedata.combining(run[at]):
        at += 1
    return at


def _is_wide(char: str) -> bool:
    """Return True for characters of scripts that write no spaces between words."""
    return unicodedata.east_asian_width(char) in "WF" or "\u0e00" <= char <= "\u0eff"
