"""A text cut into chunks of a bounded number of tokens, at the boundaries that its reader would choose.

The text is first cut into small atoms: paragraphs, and where one is large its lines, sentences, words or at
last characters. How many tokens each has follows from where the tokens of the whole text begin: the text is
tokenized once for all of them. Chunks are runs of atoms: each ends at the strongest boundary near its fair
share of what is left, so that all come out about equally long and none is a remnant. What a chunk really has
is counted when it is cut, since tokens can span the seam between two atoms.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import ceil
from typing import Final

import numpy as np
import numpy.typing as npt

# How many tokens a text has.
Count = Callable[[str], int]
# The characters, in order, with which the tokens of a text begin; about, where a tokenizer cannot say.
Starts = Callable[[str], npt.NDArray[np.int32]]
# About how many tokens the characters from one place to another have.
_Measure = Callable[[int, int], int]

# An atom has at most this part of a chunk, so that there is a boundary near every place.
_ATOMS_PER_CHUNK: Final = 16
# The share of a chunk that is filled on average; the rest lets boundaries be chosen.
_FILL: Final = 0.9
# A stronger boundary is taken up to this part of a fair share away.
_REACH: Final = 0.25

# Boundaries by strength, weakest first; each matches what stands before the boundary.
_CHARACTER, _WORD, _SENTENCE, _LINE, _PARAGRAPH, _HEADING, _TITLE = range(7)
_WORDS: Final = re.compile(r"\s+")
# A run of marks is tried at its first mark alone: else a line of dots would take the square of its length.
_SENTENCES: Final = re.compile(
    r"(?<![.!?…])[.!?…]++[\"'”’»)\]]*+\s++|(?<![。！？])[。！？]++[」』”’）]*+"  # noqa: RUF001  # Chinese marks
)
_LINES: Final = re.compile(r"\r?\n|\r")
_PARAGRAPHS: Final = re.compile(r"(?:\r?\n|\r)[^\S\r\n]*(?:\r?\n|\r)\s*?(?=\S|\Z)|\f")
# A line that begins a section: Markdown, a line underlined as in plain text and reStructuredText, or one
# that says so.
_HEADINGS: Final = re.compile(
    r"^(?:(?P<marks>\#{1,6})[ \t]+\S"
    r"|(?=\S)[^\n]{1,120}\r?\n(?P<rule>=+|-+|~+|\*+|\^+)[ \t]*$(?<=.{3})"
    r"|(?i:chapter|part|section|article|appendix|book|kapitel|teil|chapitre|cap[ií]tulo)"
    r"[ \t]+(?:[0-9]+|[ivxlcIVXLC]+)\b)",
    re.MULTILINE,
)
_FINER: Final = ((_LINES, _LINE), (_SENTENCES, _SENTENCE), (_WORDS, _WORD))


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a text, in characters.

    Attributes:
        start: where the part begins that this chunk alone stands for.
        end: where it ends; the next chunk starts here.
        context: where the text of the chunk begins: `start`, or before it if chunks overlap.
        tokens: of the text from `context` to `end`, exactly.
    """

    start: int
    end: int
    context: int
    tokens: int


@dataclass(frozen=True, slots=True)
class _Atoms:
    """A text in small pieces.

    Attributes:
        bounds: of the pieces; from 0 to the length of the text.
        strengths: of the boundary at each of `bounds`.
        before: tokens of the pieces before each of `bounds`, counted one by one.
    """

    bounds: Sequence[int]
    strengths: Sequence[int]
    before: Sequence[int]


def num_chunks(num_tokens: int, *, chunk_tokens: int, overlap_tokens: int = 0) -> int:
    """How many chunks a text of so many tokens becomes; a few may be more where it has few boundaries."""
    if num_tokens <= chunk_tokens:
        return 1
    return ceil(num_tokens / (_FILL * (chunk_tokens - overlap_tokens)))


def cut(
    text: str, count: Count, *, chunk_tokens: int, overlap_tokens: int = 0, starts: Starts | None = None
) -> list[Chunk]:
    """Cut the text into chunks in order; the same for the same text, and every character is in one.

    Args:
        text: one character at least.
        count: how many tokens a text has.
        chunk_tokens: of a chunk at most, its overlap included; far above what a character has.
        overlap_tokens: of the chunk before that each repeats, about; below `chunk_tokens / 2`.
        starts: where tokens begin; None: stretches are counted, again and again, which only short texts bear.

    Raises:
        ValueError: the text is empty, or the numbers leave no room.
    """
    if not text:
        raise ValueError("an empty text has no chunks")
    if not 0 <= 2 * overlap_tokens < chunk_tokens:
        raise ValueError("overlap_tokens must be below half of chunk_tokens")
    measure = _by_counting(text, count) if starts is None else _by_starts(starts(text))
    if measure(0, len(text)) <= chunk_tokens and (total := count(text)) <= chunk_tokens:
        return [Chunk(0, len(text), 0, total)]
    atoms = _atoms(text, measure, max_tokens=max(1, chunk_tokens // _ATOMS_PER_CHUNK))
    return list(_chunks(text, atoms, count, chunk_tokens=chunk_tokens, overlap_tokens=overlap_tokens))


def _by_counting(text: str, count: Count) -> _Measure:
    return lambda start, end: count(text[start:end])


def _by_starts(starts: npt.NDArray[np.int32]) -> _Measure:
    # Places of the same type: for others numpy would copy the whole array, each time.
    return lambda start, end: int(starts.searchsorted(np.int32(end)) - starts.searchsorted(np.int32(start)))


def _chunks(
    text: str, atoms: _Atoms, count: Count, *, chunk_tokens: int, overlap_tokens: int
) -> Iterator[Chunk]:
    room = chunk_tokens - overlap_tokens
    last = len(atoms.bounds) - 1
    first = 0
    while first < last:
        back = _back(atoms, first, overlap_tokens)
        context = atoms.bounds[back]
        end = _choose_end(atoms, first, room)
        while (tokens := count(text[context : atoms.bounds[end]])) > chunk_tokens:
            if end - first > 1:
                end = max(first + 1, end - max(1, (end - first) // _ATOMS_PER_CHUNK))
            elif back < first:  # rather less overlap than no progress
                back += 1
                context = atoms.bounds[back]
            else:
                raise ValueError(f"a character has more than {chunk_tokens} tokens")
        yield Chunk(atoms.bounds[first], atoms.bounds[end], context, tokens)
        first = end


def _choose_end(atoms: _Atoms, first: int, room: int) -> int:
    """The index of the bound at which the chunk that starts at `first` best ends."""
    begin, total = atoms.before[first], atoms.before[-1]
    left = total - begin
    if left <= room:
        return len(atoms.bounds) - 1
    share = left / ceil(left / (_FILL * room))
    most = bisect_right(atoms.before, begin + room, lo=first + 1) - 1
    lowest, highest = begin + share * (1 - _REACH), begin + min(room, share * (1 + _REACH))
    low = max(first + 1, bisect_left(atoms.before, lowest, lo=first + 1))
    high = min(most, bisect_right(atoms.before, highest, lo=first + 1) - 1)
    if high < low:
        return max(first + 1, most)
    aim = begin + share
    return max(range(low, high + 1), key=lambda each: (atoms.strengths[each], -abs(atoms.before[each] - aim)))


def _back(atoms: _Atoms, first: int, overlap_tokens: int) -> int:
    """The index of the bound from which about so many tokens lead up to `first`; never more."""
    return min(first, bisect_left(atoms.before, atoms.before[first] - overlap_tokens, hi=first))


def _atoms(text: str, measure: _Measure, *, max_tokens: int) -> _Atoms:
    """The text in pieces of at most so many tokens each, unless one is a single character."""
    strong = {match.end(): _PARAGRAPH for match in _PARAGRAPHS.finditer(text)}
    for match in _HEADINGS.finditer(text):
        is_title = match["marks"] == "#" or (match["rule"] or "").startswith("=")
        strong[match.start()] = _TITLE if is_title else _HEADING
    strong |= {0: _TITLE, len(text): _TITLE}
    pieces: list[tuple[int, int, int]] = []  # end, strength of the boundary there, tokens
    for start, end in pairwise(sorted(strong)):
        pieces += _split(text, start, end, strong[end], measure, max_tokens=max_tokens)
    return _Atoms(
        bounds=[0, *(end for end, _, _ in pieces)],
        strengths=[_TITLE, *(strength for _, strength, _ in pieces)],
        before=list(accumulate((tokens for _, _, tokens in pieces), initial=0)),
    )


def _split(
    text: str, start: int, end: int, strength: int, measure: _Measure, *, max_tokens: int, level: int = 0
) -> Iterator[tuple[int, int, int]]:
    """The pieces of a stretch, cut no finer than it has to be."""
    tokens = measure(start, end)
    if tokens <= max_tokens or end - start <= 1:
        yield end, strength, tokens
        return
    bounds, inner, finer = _inner_bounds(text, start, end, level)
    for left, right in pairwise(bounds):
        outer = strength if right == end else inner
        yield from _split(text, left, right, outer, measure, max_tokens=max_tokens, level=finer)


def _inner_bounds(text: str, start: int, end: int, level: int) -> tuple[list[int], int, int]:
    """Where the stretch is cut by the first kind of boundary that it has; its strength; the next kind."""
    for place, (pattern, strength) in enumerate(_FINER[level:], start=level):
        ends = [match.end() for match in pattern.finditer(text, start, end)]
        inner = [each for each in ends if start < each < end]
        if inner:
            return _groups([start, *inner, end]), strength, place if len(inner) > _MANY else place + 1
    middle = (start + end) // 2
    if text[middle - 1 : middle + 1] == "\r\n":
        middle += 1 if middle + 1 < end else -1
    return [start, middle if start < middle < end else start + 1, end], _CHARACTER, len(_FINER)


_MANY: Final = 16


def _groups(bounds: list[int]) -> list[int]:
    """At most about `_MANY` of these bounds, evenly: a page of words is halved before it is taken apart."""
    if len(bounds) <= _MANY + 2:
        return bounds
    step = len(bounds) // _MANY
    return [*bounds[:-1:step], bounds[-1]]
