"""Columns of prose whose lines are drawn row by row, across the gap between them.

PDFium keeps the order in which a page is drawn, which is nearly always the order of reading. Some programs
draw line by line from the top of the page, so that each line of the left column is followed by one of the
right. Tables are drawn that way too, and rightly; so columns are only told apart where both are prose: most
lines fill their column, and many go on in the next line.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final

from worker.extract.pages.placing import Glyph, Rectangle, Run, runs_of

_LEAST_ROWS: Final = 4
_SHORT: Final = 6  # rows; fewer count only if each column is one sentence over all its lines
_LEAST_PAIRED: Final = 0.8  # share of the rows that both columns have a line in
_LEAST_WIDTH: Final = 0.22  # of a column, as a share of both with the gap
_FULL: Final = 0.8  # of a column's width that a full line takes
_LEAST_FULL: Final = 0.65  # share of full lines
_LEAST_CONTINUED: Final = 0.35  # share of lines that go on in the next one: prose has 0.6 and more
_MOST_LEADING: Final = 1.5  # times the usual step from line to line; a larger one ends a block
_GAP: Final = 0.8  # heights of letters between two columns

_LEAST_CONTINUED_IN_SHORT: Final = 0.9
_PAUSES: Final = frozenset(".!?:;\N{IDEOGRAPHIC FULL STOP}")


@dataclass(frozen=True, slots=True)
class _Block:
    """Two columns next to each other: positions in the list of lines."""

    left: list[int]
    right: list[int]


def has_columns(boxes: Sequence[Rectangle]) -> bool:
    """Return True if boxes of text, in the order of drawing, look like columns drawn row by row."""
    return any(True for _ in _blocks(_merged(boxes)))


def reordered(glyphs: Sequence[Glyph]) -> list[Glyph]:
    """Return the characters with columns of prose one after the other."""
    runs = runs_of(glyphs)
    result: list[Glyph] = []
    at = 0
    for block in _blocks([run.place for run in runs]):
        left, right = [runs[each] for each in block.left], [runs[each] for each in block.right]
        if not (_is_prose(left, glyphs) and _is_prose(right, glyphs)):
            continue
        first = min(left[0].first, right[0].first)
        last = max(left[-1].last, right[-1].last)
        result += glyphs[at:first]
        result += _column(left, glyphs)
        result.append(Glyph("\n", None))
        result += _column(right, glyphs)
        at = last + 1
    return [*result, *glyphs[at:]]


def _column(runs: Sequence[Run], glyphs: Sequence[Glyph]) -> Iterator[Glyph]:
    """Return the lines of a column; a hyphen at a line's end becomes PDFium's mark for it."""
    for run, following in pairwise([*runs, None]):
        if run is None:
            continue
        line = glyphs[run.first : run.last + 1]
        if following is None:
            yield from line
        elif line[-1].text == "-" and len(line) > 1 and glyphs[following.first].text.islower():
            yield from line[:-1]
            yield Glyph("\x02\n", None)
        else:
            yield from line
            yield Glyph("\n", None)


def _is_prose(runs: Sequence[Run], glyphs: Sequence[Glyph]) -> bool:
    """Return True if many lines go on in the next one, or if the script does not show it."""
    continued = cased = 0
    for run, following in pairwise(runs):
        last, first = glyphs[run.last].text, glyphs[following.first].text
        cased += first.islower() or first.isupper()
        continued += last not in _PAUSES and (first.islower() or last == "-")
    letters = sum(glyphs[at].text.isalpha() for run in runs for at in range(run.first, run.last + 1))
    visible = sum(not glyphs[at].text.isspace() for run in runs for at in range(run.first, run.last + 1))
    if letters < _FULL * visible or not cased:
        return False
    begins = glyphs[runs[0].first].text.isupper()
    if len(runs) < _SHORT:
        return begins and continued >= _LEAST_CONTINUED_IN_SHORT * (len(runs) - 1)
    pauses = any(glyphs[at].text in _PAUSES for run in runs for at in range(run.first, run.last + 1))
    return (begins or pauses) and continued >= _LEAST_CONTINUED * (len(runs) - 1)


def _blocks(lines: Sequence[Rectangle]) -> Iterator[_Block]:
    """Find the rows, one after the other, that have a gap at the same place."""
    rows = _rows(lines)
    at = 0
    while at < len(rows):
        block, size = _block(lines, rows[at:])
        if block is not None:
            yield block
        at += max(1, size)


def _block(lines: Sequence[Rectangle], rows: Sequence[list[int]]) -> tuple[_Block | None, int]:
    """Return the columns at the start of the rows, and the number of rows that were looked at."""
    if len(rows) < _LEAST_ROWS or len(rows[0]) != 2:
        return None, 1
    left: list[int] = []
    right: list[int] = []
    low, high = lines[rows[0][0]].right, lines[rows[0][1]].left
    leading = 0.0
    size = paired = 0
    for row, above in zip(rows, [None, *rows], strict=False):
        step = lines[above[0]].middle - lines[row[0]].middle if above else 0.0
        if above and (step <= 0 or (leading and step > _MOST_LEADING * leading)):
            break
        leading = step if step > 0 and not leading else leading
        here_left = [each for each in row if lines[each].right <= (low + high) / 2]
        here_right = [each for each in row if lines[each].left >= (low + high) / 2]
        if len(here_left) > 1 or len(here_right) > 1 or len(here_left) + len(here_right) != len(row):
            break
        low = max([low, *(lines[each].right for each in here_left)])
        high = min([high, *(lines[each].left for each in here_right)])
        height = lines[row[0]].top - lines[row[0]].bottom
        if high - low < _GAP * height:
            break
        left += here_left
        right += here_right
        size += 1
        paired += len(row) == 2
    is_block = size >= _LEAST_ROWS and paired >= _LEAST_PAIRED * size
    if is_block and _fills(lines, left, right) and _fills(lines, right, left):
        return _Block(left, right), size
    return None, 1


def _fills(lines: Sequence[Rectangle], column: Sequence[int], other: Sequence[int]) -> bool:
    """Return True if a column is wide, and most of its lines are as wide as it is."""
    widths = [lines[each].right - lines[each].left for each in column]
    both = [*column, *other]
    whole = max(lines[each].right for each in both) - min(lines[each].left for each in both)
    most = max(widths)
    num_full = sum(width >= _FULL * most for width in widths)
    return median(widths) >= _LEAST_WIDTH * whole and num_full >= _LEAST_FULL * len(widths)


def _rows(lines: Sequence[Rectangle]) -> list[list[int]]:
    """Group lines that are drawn one after the other at the same height, from left to right."""
    rows: list[list[int]] = []
    for position, line in enumerate(lines):
        last = lines[rows[-1][-1]] if rows else None
        if (
            last is not None
            and abs(last.middle - line.middle) < (line.top - line.bottom) / 2
            and line.left >= last.right
        ):
            rows[-1].append(position)
        else:
            rows.append([position])
    return rows


def _merged(boxes: Sequence[Rectangle]) -> list[Rectangle]:
    """Join boxes that follow each other on a line without a gap."""
    lines: list[Rectangle] = []
    for box in boxes:
        last = lines[-1] if lines else None
        height = max(box.top - box.bottom, 1.0)
        if (
            last is not None
            and abs(last.middle - box.middle) < height / 2
            and -height * 4 < box.left - last.right < height * _GAP
        ):
            lines[-1] = Rectangle(
                min(last.left, box.left),
                min(last.bottom, box.bottom),
                max(last.right, box.right),
                max(last.top, box.top),
            )
        else:
            lines.append(box)
    return lines
