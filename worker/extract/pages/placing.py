"""Values at their places within the text of a page.

The text keeps PDFium's order. Each value is written next to its label: after the text on its left; a box is
written next to the nearer of its two neighbours; a value with nothing on its line follows the line above it.
Values in one row, as in a table to fill in, stay one row.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

_FILLERS: Final = frozenset("_.…·‥-")
_LEAST_FILLERS: Final = 3  # in a row, under a value: a line to write on
_BAND: Final = 24.0  # points; runs are looked up by bands of this height
_NEAR: Final = 72.0  # points from a value to the label on its left
_JUST_ABOVE: Final = 12.0  # points from a value to the label above it
_ABOVE: Final = 40.0
_RUN_GAP: Final = 1.2  # heights of letters between two runs on a line
_SLACK: Final = 2.0  # points by which boxes overlap their neighbours
_ALIGNED: Final = 3.0  # points by which the sides of two values in a column may differ
_TOUCHING: Final = 6.0  # points: too little for a label between two values
_LONGEST_LINE: Final = 500  # characters of a line to write on
_FARTHEST: Final = 20_000.0  # points; pages have at most 14,400
_MOST_BANDS: Final = 100  # that a run or value may cover
_SPACE: Final = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Rectangle:
    """A place on a page, in points from its lower left corner."""

    left: float
    bottom: float
    right: float
    top: float

    @property
    def is_empty(self) -> bool:
        """Whether it has no area, so that nothing in it is seen."""
        return self.right - self.left < 0.5 or self.top - self.bottom < 0.5

    @property
    def middle(self) -> float:
        """Its centre, from bottom to top."""
        return (self.bottom + self.top) / 2

    def turned(self, quarters: int) -> "Rectangle":
        """Return it as seen on a page that is shown rotated clockwise by this number of quarter turns."""
        left, bottom, right, top = self.left, self.bottom, self.right, self.top
        match quarters % 4:
            case 1:
                return Rectangle(bottom, -right, top, -left)
            case 2:
                return Rectangle(-right, -top, -left, -bottom)
            case 3:
                return Rectangle(-top, left, -bottom, right)
        return self


def rectangle(found: Any) -> Rectangle:  # noqa: ANN401  # one of PDFium's
    """Return a rectangle whose sides are in order, and near the page wherever the document puts them."""
    left, bottom, right, top = found.left, found.bottom, found.right, found.top
    if -_FARTHEST <= left <= right <= _FARTHEST and -_FARTHEST <= bottom <= top <= _FARTHEST:
        return Rectangle(left, bottom, right, top)  # each letter of a page has one
    xs = sorted(_bounded(each) for each in (found.left, found.right))
    ys = sorted(_bounded(each) for each in (found.bottom, found.top))
    return Rectangle(xs[0], ys[0], xs[1], ys[1])


def _bounded(length: float) -> float:
    return max(-_FARTHEST, min(_FARTHEST, length)) if length == length else 0.0  # noqa: PLR0124  # not a number


@dataclass(frozen=True, slots=True)
class Glyph:
    """A character of the page's text; `box` is None for spaces and line ends that PDFium added."""

    text: str
    box: Rectangle | None


@dataclass(frozen=True, slots=True)
class Value:
    """A text with its place.

    Attributes:
        is_tick: it is a box, whose label may be on either side.
    """

    place: Rectangle
    text: str
    is_tick: bool = False


@dataclass(slots=True)
class Run:
    """Characters without a wide gap: positions in the text, and the rectangle around them."""

    first: int
    last: int
    place: Rectangle


@dataclass(frozen=True, slots=True)
class _Anchor:
    """Where a value is inserted: before or after the character at `position`."""

    position: int
    is_before: bool = False
    on_new_line: bool = False


@dataclass(slots=True)
class _Page:
    """The page's characters, and their runs by height."""

    glyphs: Sequence[Glyph]
    runs: list[Run]
    bands: dict[int, list[Run]] = field(default_factory=dict)

    def near(self, bottom: float, top: float) -> list[Run]:
        """Return the runs between two heights, and some around."""
        found: dict[int, Run] = {}
        first = int(bottom // _BAND)
        for band in range(first, min(int(top // _BAND), first + _MOST_BANDS) + 1):
            for run in self.bands.get(band, ()):
                found[run.first] = run
        return list(found.values())

    def shows(self, value: Value) -> bool:
        """Return True if the page itself has the value, at its place."""
        if not value.text or value.is_tick:
            return False
        runs = sorted(self.near(value.place.bottom, value.place.top), key=lambda run: run.first)
        positions = (at for run in runs for at in range(run.first, run.last + 1))
        text = text_within([self.glyphs[at] for at in positions], value.place)
        return squeezed(value.text) in squeezed(text)

    def word_start(self, position: int) -> int:
        """Return the position of the first character of the word: boxes overlap the letters next to them."""
        while position > 0 and self._is_inside_word(position):
            position -= 1
        return position

    def word_end(self, position: int) -> int:
        """Return the position of the last character of the word, up to the dots of a line to write on."""
        while self._is_inside_word(position + 1) and self.glyphs[position + 1].text not in _FILLERS:
            position += 1
        return position

    def _is_inside_word(self, position: int) -> bool:
        """Return True if no space is before this character."""
        if position >= len(self.glyphs):
            return False
        left, right = self.glyphs[position - 1], self.glyphs[position]
        if left.box is None or right.box is None or not (left.text.strip() and right.text.strip()):
            return False
        return abs(right.box.left - left.box.right) < _SLACK and left.text.isalnum() and right.text.isalnum()

    def line_end(self, position: int) -> int:
        """Return the position of the last character of the line, spaces aside."""
        for at in range(position + 1, len(self.glyphs)):
            text = self.glyphs[at].text
            if text in "\r\n":
                break
            if text.strip():
                position = at
        return position


@dataclass(slots=True)
class _Inserted:
    """What is inserted before and after the characters of a text."""

    before: dict[int, list[str]] = field(default_factory=dict)
    after: dict[int, list[str]] = field(default_factory=dict)

    def add(self, anchor: _Anchor, text: str) -> None:
        """Insert a text at its anchor, after those that are there already."""
        if anchor.is_before:
            self.before.setdefault(anchor.position, []).append(f"{text} ")
        else:
            mark = "\n" if anchor.on_new_line else " "
            self.after.setdefault(anchor.position, []).append(mark + text)

    def joined(self, pieces: Sequence[str]) -> str:
        """Join the text and what is inserted, with one space between the two."""
        parts = list(self.after.get(-1, ()))
        for position, piece in enumerate(pieces):
            parts += self.before.get(position, ())
            parts.append(piece)
            for text in self.after.get(position, ()):
                parts.append(text.lstrip(" ") if parts[-1].endswith(" ") else text)
            if position in self.after:
                follows = next(
                    (each for each in pieces[position + 1 : position + _LONGEST_LINE] if each), "\n"
                )
                if not follows[0].isspace():
                    parts.append(" ")
        return "".join(parts)


def place_values(glyphs: Sequence[Glyph], values: Iterable[Value]) -> str:
    """Return the page's text with the values at their places."""
    values = list(values)
    if not values:
        return "".join(glyph.text for glyph in glyphs)
    page = _Page(glyphs, runs_of(glyphs))
    for run in page.runs:
        first = int(run.place.bottom // _BAND)
        for band in range(first, min(int(run.place.top // _BAND), first + _MOST_BANDS) + 1):
            page.bands.setdefault(band, []).append(run)
    pieces = [glyph.text for glyph in glyphs]
    inserted = _Inserted()
    rows = _rows(value for value in values if not page.shows(value))
    for row, below in pairwise([*rows, []]):
        for anchor, values_there in _anchored(page, row, below):
            texts = [value.text for value in values_there]
            if any(texts):
                inserted.add(anchor, "\t".join(texts).rstrip("\t"))
        for value in row:
            _drop_fillers(page, value, pieces)
    return inserted.joined(pieces)


def text_within(glyphs: Sequence[Glyph], place: Rectangle) -> str:
    """Return the characters whose centres are in the rectangle."""
    return "".join(glyph.text for glyph in glyphs if glyph.box is not None and _is_within(glyph.box, place))


def squeezed(text: str) -> str:
    """Return the text without white space, to compare what is drawn with what is stored."""
    return _SPACE.sub("", unicodedata.normalize("NFKC", text)).casefold()


def _anchored(page: _Page, row: list[Value], below: list[Value]) -> Iterator[tuple[_Anchor, list[Value]]]:
    """Find the anchors of the values of a row; those with nothing between them share one."""
    # One value above another of its width is a text of two lines; two of them are a table's columns.
    tops = {_sides(each): each.place.top for each in below}
    touched = (value.place.bottom - tops.get(_sides(value), -_FARTHEST) < _TOUCHING for value in row)
    is_table = sum(touched) > 1
    groups: list[tuple[_Anchor, list[Value]]] = []
    for value in row:
        last = (groups[-1][0], groups[-1][1][-1]) if groups else None
        anchor = _anchor(page, value, last=last, is_in_table=is_table)
        if last is not None and anchor is last[0]:
            groups[-1][1].append(value)
        else:
            groups.append((anchor, [value]))
    yield from groups


def _sides(value: Value) -> tuple[int, int]:
    """Return where a value begins and ends, about the same for those of one column."""
    return round(value.place.left / _ALIGNED), round(value.place.right / _ALIGNED)


def _anchor(page: _Page, value: Value, *, last: tuple[_Anchor, Value] | None, is_in_table: bool) -> _Anchor:
    """Find where a value belongs; the anchor of the value on its left if nothing is between the two."""
    place = value.place
    same = [
        run
        for run in page.near(place.bottom - _SLACK, place.top + _SLACK)
        if place.bottom - 1 < run.place.middle < place.top + 1
        or run.place.bottom < place.middle < run.place.top
    ]
    left, left_gap = _left_neighbour(page, same, place)
    right, right_gap, right_run = _right_neighbour(page, same, place)
    is_right_nearer = right_gap < _NEAR and right_gap <= left_gap
    above, above_gap = _above(page, place)
    label = above if above_gap < _JUST_ABOVE and not value.is_tick and not is_in_table else None
    chain = None
    if last is not None and not last[0].is_before and place.left - last[1].place.right < left_gap:
        chain = last[0]
    found = _Anchor(0, is_before=True) if page.glyphs else _Anchor(-1)
    if right is not None and right_run is not None and is_right_nearer and _is_rtl(page, right_run):
        found = _Anchor(right_run.last)
    elif right is not None and is_right_nearer and value.is_tick:
        found = _Anchor(page.word_start(right), is_before=True)
    elif chain is not None and (label is None or label.last == chain.position):
        found = chain
    elif label is not None and (chain is not None or left is None or left_gap > _NEAR):
        found = _Anchor(label.last, on_new_line=page.line_end(label.last) == label.last)
    elif left is not None:
        found = _Anchor(page.word_end(left))
    elif right is not None and right_gap < _NEAR:
        found = _Anchor(page.word_start(right), is_before=True)
    elif (nearest := above or _nearest_above(page, place)) is not None:
        found = _Anchor(page.line_end(nearest.last), on_new_line=True)
    return found


def _left_neighbour(page: _Page, same: list[Run], place: Rectangle) -> tuple[int | None, float]:
    """Find the last character on the left, of the lowest run if a tall value has several next to it."""
    found: tuple[float, float, int] | None = None
    for run in same:
        position = _last_before(page, run, place.left + _SLACK)
        if position is None:
            continue
        box = page.glyphs[position].box
        gap = place.left - (box.right if box else place.left)
        # Lines of one label end near each other; the lowest of them ends the label.
        key = (round(max(gap, 0.0) / _NEAR), run.place.bottom, position)
        if found is None or key < found:
            found = key
    if found is None:
        return None, float("inf")
    box = page.glyphs[found[2]].box
    return found[2], max(0.0, place.left - (box.right if box else place.left))


def _right_neighbour(page: _Page, same: list[Run], place: Rectangle) -> tuple[int | None, float, Run | None]:
    """Find the nearest character on the right: its position, how far it is, and its run."""
    best: tuple[int | None, float, Run | None] = (None, float("inf"), None)
    for run in same:
        if run.place.right <= place.right:
            continue
        for position in range(run.first, run.last + 1):
            box = page.glyphs[position].box
            if box is not None and (box.left + box.right) / 2 >= place.right - _SLACK:
                gap = max(0.0, box.left - place.right)
                best = min(best, (position, gap, run), key=lambda each: each[1])
                if not _is_rtl(page, run):
                    break
    return best


def _above(page: _Page, place: Rectangle) -> tuple[Run | None, float]:
    """Find the nearest run above that is over the value."""
    best: tuple[Run | None, float] = (None, float("inf"))
    for run in page.near(place.top - _SLACK, place.top + _ABOVE):
        gap = run.place.bottom - place.top
        is_over = run.place.left < place.right and place.left < run.place.right
        if is_over and -2 * _SLACK < gap < _ABOVE and run.place.middle > place.middle and gap < best[1]:
            best = (run, gap)
    return best


def _nearest_above(page: _Page, place: Rectangle) -> Run | None:
    """Return the nearest text above, anywhere on the page."""
    over = [run for run in page.runs if run.place.middle > place.middle]
    return min(over, key=lambda run: (run.place.bottom, -run.place.right), default=None)


def _rows(values: Iterable[Value]) -> list[list[Value]]:
    """Group values that are next to each other, from the top, each row from the left."""
    rows: list[list[Value]] = []
    for value in sorted(values, key=lambda each: (-each.place.top, each.place.left)):
        last = rows[-1][0].place if rows else None
        height = value.place.top - value.place.bottom
        if (
            last is not None
            and abs(last.middle - value.place.middle) < min(height, last.top - last.bottom) / 2
        ):
            rows[-1].append(value)
        else:
            rows.append([value])
    return [sorted(row, key=lambda each: each.place.left) for row in rows]


def runs_of(glyphs: Sequence[Glyph]) -> list[Run]:
    """Split a page's characters at line ends, wide gaps and jumps."""
    runs: list[Run] = []
    last: Rectangle | None = None
    for position, glyph in enumerate(glyphs):
        box = glyph.box
        if glyph.text in "\r\n":
            last = None
        if box is None or not glyph.text.strip():
            continue
        height = max(box.top - box.bottom, 1.0)
        if (
            last is not None
            and runs
            and abs(box.middle - last.middle) < height
            and -height * 4 < box.left - last.right < height * _RUN_GAP
        ):
            run = runs[-1]
            run.last = position
            run.place = Rectangle(
                min(run.place.left, box.left),
                min(run.place.bottom, box.bottom),
                max(run.place.right, box.right),
                max(run.place.top, box.top),
            )
        else:
            runs.append(Run(position, position, box))
        last = box
    return runs


def _last_before(page: _Page, run: Run, edge: float) -> int | None:
    """Find the last character of the run whose centre is left of the edge."""
    if run.place.left >= edge:
        return None
    if run.place.right <= edge:
        return run.last
    found = None
    for position in range(run.first, run.last + 1):
        box = page.glyphs[position].box
        if box is not None and (box.left + box.right) / 2 < edge:
            found = position
    return found


def _drop_fillers(page: _Page, value: Value, pieces: list[str]) -> None:
    """Drop the dots or underscores of the line on which a value is written."""
    if not value.text or value.is_tick:
        return
    for run in page.near(value.place.bottom - _SLACK, value.place.top):
        under = [
            position
            for position in range(run.first, run.last + 1)
            if (box := page.glyphs[position].box) is not None
            and page.glyphs[position].text in _FILLERS
            and _is_within(box, value.place)
        ]
        if len(under) >= _LEAST_FILLERS:
            for position in under:
                pieces[position] = ""


def _is_within(box: Rectangle, place: Rectangle) -> bool:
    x, y = (box.left + box.right) / 2, box.middle
    return place.left - 1 <= x <= place.right + 1 and place.bottom - 1 <= y <= place.top + 1


def _is_rtl(page: _Page, run: Run) -> bool:
    text = "".join(page.glyphs[position].text for position in range(run.first, run.last + 1))
    return sum(unicodedata.bidirectional(each) in ("R", "AL") for each in text) * 2 > len(text)
