"""The order in which the lines of a page are read: rows from the top, columns of text one after the other."""

from dataclasses import dataclass
from statistics import median
from typing import Final

_LEAST_ROWS: Final = 4  # that two columns have next to each other
_LEAST_SHARE: Final = 0.3  # of the text's width that a column's lines take; the cells of tables take less


@dataclass(frozen=True, slots=True)
class PageLine:
    """A line of text and where it is, in pixels.

    Attributes:
        middle: how far its centre is from the top of the page.
        height: of the letters, which on a skewed page is less than that of the rectangle around the line.
    """

    left: float
    right: float
    middle: float
    height: float
    text: str
    is_sure: bool = True

    @property
    def width(self) -> float:
        """Its extent from left to right."""
        return self.right - self.left


def arrange(lines: list[PageLine]) -> list[str]:
    """Join the lines of each row, in the order in which the page is read."""
    rows = _rows(lines)
    whole = max((line.right for line in lines), default=0) - min((line.left for line in lines), default=0)
    texts: list[str] = []
    at = 0
    while at < len(rows):
        columns = _columns(rows[at:], whole)
        if columns:
            for column in columns:
                texts += [_joined(row) for row in _rows(column)]
            at += _num_rows_within(rows[at:], sum(len(column) for column in columns))
        else:
            texts.append(_joined(rows[at]))
            at += 1
    return texts


def _rows(lines: list[PageLine]) -> list[list[PageLine]]:
    """Group lines that are next to each other, from the top."""
    rows: list[list[PageLine]] = []
    for line in sorted(lines, key=lambda each: each.middle):
        last = rows[-1][0] if rows else None
        if last is not None and line.middle - last.middle < last.height / 2:
            rows[-1].append(line)
        else:
            rows.append([line])
    return [sorted(row, key=lambda each: each.left) for row in rows]


def _columns(rows: list[list[PageLine]], whole: float) -> tuple[list[PageLine], list[PageLine]] | None:
    """Split the first rows at the gap that runs through them; None if they are no two columns."""
    first = next((row for row in rows[:_LEAST_ROWS] if len(row) == 2), None)
    if first is None:
        return None
    gap = (first[0].right + first[1].left) / 2
    left: list[PageLine] = []
    right: list[PageLine] = []
    for row in rows:
        if any(line.left < gap < line.right for line in row):
            break
        left += [line for line in row if line.right <= gap]
        right += [line for line in row if line.left >= gap]
    if min(len(left), len(right)) < _LEAST_ROWS:
        return None
    if min(median(line.width for line in left), median(line.width for line in right)) < _LEAST_SHARE * whole:
        return None
    return left, right


def _num_rows_within(rows: list[list[PageLine]], num_lines: int) -> int:
    """Count the rows that hold the first lines."""
    number = 0
    while num_lines > 0:
        num_lines -= len(rows[number])
        number += 1
    return number


def _joined(row: list[PageLine]) -> str:
    return " ".join(line.text for line in row)
