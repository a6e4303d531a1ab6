"""Texts cut into chunks of a bounded number of tokens, at the boundaries that a reader would choose.

The text is first cut into small atoms: paragraphs, and within large ones lines, sentences, words or finally
characters. Where the tokens of the whole text begin determines how many each atom has, so the text is
tokenized only once. Chunks are runs of atoms: each ends at the strongest boundary near its fair share of the
rest, so that all are about equally long and none is a remnant. The exact tokens of a chunk are counted when
it is cut, since tokens can span the seam between two atoms.
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

# Counts the tokens of a text.
Count = Callable[[str], int]
# Returns the index of each token's first character, in order; approximate if the tokenizer is not exact.
Starts = Callable[[str], npt.NDArray[np.int32]]
# Estimates the tokens of the characters between two places.
_Measure = Callable[[int, int], int]

# An atom is at most a chunk divided by this, so that there is a boundary near every place.
_ATOMS_PER_CHUNK: Final = 16
# The share of a chunk that is filled on average; the rest leaves a choice of boundaries.
_FILL: Final = 0.9
# How far away a stronger boundary may be, as a part of a fair share.
_REACH: Final = 0.25

# Boundaries by strength, weakest first. Each pattern matches the text before the boundary.
_CHARACTER, _WORD, _SENTENCE, _LINE, _PARAGRAPH, _HEADING, _TITLE = range(7)
_WORDS: Final = re.compile(r"\s+")
# A run of marks is tried at its first mark only; otherwise a line of dots would take quadratic time.
_SENTENCES: Final = re.compile(
    r"(?<![.!?…])[.!?…]++[\"'”’»)\]]*+\s++|(?<![。！？])[。！？]++[」』”’）]*+"  # noqa: RUF001  # Chinese marks
)
_LINES: Final = re.compile(r"\r?\n|\r")
_PARAGRAPHS: Final = re.compile(r"(?:\r?\n|\r)[^\S\r\n]*(?:\r?\n|\r)\s*?(?=\S|\Z)|\f")
# A line that begins a section: a Markdown heading, a line underlined as in plain text and reStructuredText,
# or one such as "Chapter 3".
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
    """A chunk of a text, in characters.

    Attributes:
        start: where this chunk's own part begins; these parts tile the text.
        end: where it ends; the next chunk starts here.
        context: where the text of the chunk begins: `start`, or before it if chunks overlap.
        tokens: exact tokens of the text from `context` to `end`.
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
        before: tokens of all pieces before each of `bounds`, each piece counted alone.
    """

    bounds: Sequence[int]
    strengths: Sequence[int]
    before: Sequence[int]


def num_chunks(num_tokens: int, *, chunk_tokens: int, overlap_tokens: int = 0) -> int:
    """Estimate how many chunks a text has; a few more if it has few boundaries."""
    if num_tokens <= chunk_tokens:
        return 1
    return ceil(num_tokens / (_FILL * (chunk_tokens - overlap_tokens)))


def cut(
    text: str, count: Count, *, chunk_tokens: int, overlap_tokens: int = 0, starts: Starts | None = None
) -> list[Chunk]:
    """Cut the text into chunks, in order.

    The same text always gives the same chunks, and every character is in a chunk.

    Args:
        text: at least one character.
        count: counts the tokens of a text.
        chunk_tokens: the most tokens of a chunk, with its overlap; far more than a character has.
        overlap_tokens: about how many tokens of the previous chunk each repeats; below `chunk_tokens / 2`.
        starts: finds where tokens begin; None means counting stretch after stretch, slow for long texts.

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
    # int32 like the array: for another type, numpy would copy the whole array each time.
    return lambda start, end: int(starts.searchsorted(np.int32(end)) - starts.searchsorted(np.int32(start)))


def _chunks(
    text: str, atoms: _Atoms, count: Count, *, chunk_tokens: int, overlap_tokens: int
) -> Iterator[Chunk]:
    room = chunk_tokens - overlap_tokens
    last = len(atoms.bounds) - 1
    first = 0
    while first < last:
        context_index = _overlap_start(atoms, first, overlap_tokens)
        context = atoms.bounds[context_index]
        end = _choose_end(atoms, first, room)
        while (tokens := count(text[context : atoms.bounds[end]])) > chunk_tokens:
            if end - first > 1:
                end = max(first + 1, end - max(1, (end - first) // _ATOMS_PER_CHUNK))
            elif context_index < first:  # less overlap is better than no progress
                context_index += 1
                context = atoms.bounds[context_index]
            else:
                raise ValueError(f"a character has more than {chunk_tokens} tokens")
        yield Chunk(atoms.bounds[first], atoms.bounds[end], context, tokens)
        first = end


def _choose_end(atoms: _Atoms, first: int, room: int) -> int:
    """Choose the index of the bound at which the chunk from `first` should end."""
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


def _overlap_start(atoms: _Atoms, first: int, overlap_tokens: int) -> int:
    """Return the first bound with at most `overlap_tokens` from there to `first`."""
    return min(first, bisect_left(atoms.before, atoms.before[first] - overlap_tokens, hi=first))


def _atoms(text: str, measure: _Measure, *, max_tokens: int) -> _Atoms:
    """Split the text into pieces of at most `max_tokens`, or of a single character."""
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
    """Yield the pieces of a stretch, cut no finer than necessary."""
    tokens = measure(start, end)
    if tokens <= max_tokens or end - start <= 1:
        yield end, strength, tokens
        return
    bounds, inner, finer = _inner_bounds(text, start, end, level)
    for left, right in pairwise(bounds):
        outer = strength if right == end else inner
        yield from _split(text, left, right, outer, measure, max_tokens=max_tokens, level=finer)


def _inner_bounds(text: str, start: int, end: int, level: int) -> tuple[list[int], int, int]:
    """Cut at the strongest inner boundaries; return bounds, strength and next level."""
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
    """Thin the bounds to about `_MANY`, evenly: a page is divided before its words."""
    if len(bounds) <= _MANY + 2:
        return bounds
    step = len(bounds) // _MANY
    return [*bounds[:-1:step], bounds[-1]]
