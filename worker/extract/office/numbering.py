"""The automatic numbers of lists in docx: decimal, letters, Roman, over several levels, and bullets."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from worker.extract.office.package import Package, whole

_W: Final = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_ROMAN: Final = (
    (1000, "m"), (900, "cm"), (500, "d"), (400, "cd"), (100, "c"), (90, "xc"), (50, "l"), (40, "xl"),
    (10, "x"), (9, "ix"), (5, "v"), (4, "iv"), (1, "i"),
)  # fmt: skip
_MOST: Final = 10_000  # above it, letters and Roman numerals are decimal: they grow with the number
_BULLET: Final = "- "
_NUM_LEVELS: Final = 9


@dataclass(frozen=True, slots=True)
class _Level:
    """A level of a list.

    Attributes:
        pattern: such as `%1.%2.`.
        restarts_after: the level whose next number restarts this one; 0: none does; None: any above.
    """

    start: int = 1
    form: str = "decimal"
    pattern: str = ""
    restarts_after: int | None = None
    is_legal: bool = False


@dataclass(slots=True)
class _List:
    """A list in use.

    Attributes:
        counts: of each level, None where it has not begun.
    """

    counts: list[int | None] = field(default_factory=lambda: [None] * _NUM_LEVELS)


class Numbering:
    """The numbers of all lists of a document so far."""

    def __init__(self, root: Any) -> None:  # noqa: ANN401  # lxml is untyped
        self._abstract: dict[str, dict[int, _Level]] = {}
        self._levels: dict[str, dict[int, _Level]] = {}  # by the id of the list
        self._origin: dict[str, str] = {}  # the abstract list that a list counts with
        self._restarts: dict[str, dict[int, int]] = {}
        self._lists: dict[str, _List] = {}
        self._begun: set[str] = set()
        self.of_styles: dict[str, tuple[str, int]] = {}
        if root is not None:
            self._read(root)

    @classmethod
    def of(cls, package: Package, path: str | None) -> "Numbering":
        """Read the part; without one, no list has numbers."""
        return cls(None if path is None else package.optional(path, "the numbers of lists"))

    def next(self, number_id: str, level: int) -> str:
        """Count a paragraph of a list; return what stands before it."""
        levels = self._levels.get(number_id)
        if levels is None or not 0 <= level < _NUM_LEVELS:
            return ""
        here = levels.get(level, _Level())
        counts = self._lists.setdefault(self._origin[number_id], _List()).counts
        if number_id not in self._begun:
            self._begun.add(number_id)
            for place, start in self._restarts[number_id].items():
                counts[place] = start - 1
        now = counts[level]
        counts[level] = here.start if now is None else now + 1
        for below in range(level + 1, _NUM_LEVELS):
            after = levels.get(below, _Level()).restarts_after
            if after is None or level < after:
                counts[below] = None
        if here.form == "bullet":
            return _BULLET
        text = here.pattern
        for place in range(level + 1):
            if f"%{place + 1}" in text:
                its = levels.get(place, _Level())
                count = counts[place]
                if count is None:  # a level that the list skips counts as begun
                    count = counts[place] = its.start
                form = "decimal" if here.is_legal and its.form != "none" else its.form
                text = text.replace(f"%{place + 1}", shown(count, form))
        return text.strip() + " " if text.strip() else ""

    def _read(self, root: Any) -> None:  # noqa: ANN401
        links: dict[str, str] = {}
        styles: dict[str, str] = {}
        for each in root.iterfind(f"{_W}abstractNum"):
            its_id = each.get(f"{_W}abstractNumId", "")
            self._abstract[its_id] = {
                place: _level(level) for level in each.iterfind(f"{_W}lvl") if (place := _place(level)) >= 0
            }
            if (link := each.find(f"{_W}numStyleLink")) is not None:
                links[its_id] = link.get(f"{_W}val", "")
            if (link := each.find(f"{_W}styleLink")) is not None:
                styles[link.get(f"{_W}val", "")] = its_id
        for each in root.iterfind(f"{_W}num"):
            self._read_list(each, {its: styles[to] for its, to in links.items() if to in styles})
        levels = {
            each.get(f"{_W}abstractNumId", ""): [
                (style, place)
                for level in each.iterfind(f"{_W}lvl")
                if (style := _value(level, "pStyle")) and (place := _place(level)) >= 0
            ]
            for each in root.iterfind(f"{_W}abstractNum")
        }
        for its_id, origin in self._origin.items():
            for style, place in levels.get(origin, ()):
                self.of_styles.setdefault(style, (its_id, place))

    def _read_list(self, each: Any, links: Mapping[str, str]) -> None:  # noqa: ANN401
        its_id = each.get(f"{_W}numId", "")
        named = each.find(f"{_W}abstractNumId")
        origin = "" if named is None else named.get(f"{_W}val", "")
        origin = links.get(origin, origin)
        levels = dict(self._abstract.get(origin, {}))
        restarts = {}
        for override in each.iterfind(f"{_W}lvlOverride"):
            if (place := _place(override)) < 0:
                continue
            if (own := override.find(f"{_W}lvl")) is not None:
                levels[place] = _level(own)
            if (start := _value(override, "startOverride")) is not None:
                restarts[place] = whole(start, 1)
        self._levels[its_id], self._origin[its_id], self._restarts[its_id] = levels, origin, restarts


def shown(count: int, form: str) -> str:
    """Return a number in one of Word's forms; in digits if the form is of another script."""
    build = _FORMS.get(form)
    return str(count) if build is None or not 0 < count <= _MOST else build(count)


def _letters(count: int) -> str:
    """Return a, b, … z, aa, bb, …."""
    return chr(97 + (count - 1) % 26) * ((count - 1) // 26 + 1)


def _roman(count: int) -> str:
    out = ""
    for value, letters in _ROMAN:
        times, count = divmod(count, value)
        out += letters * times
    return out


def _ordinal(count: int) -> str:
    ending = "th" if count % 100 in {11, 12, 13} else {1: "st", 2: "nd", 3: "rd"}.get(count % 10, "th")
    return f"{count}{ending}"


_FORMS: Final[Mapping[str, Callable[[int], str]]] = {
    "lowerLetter": _letters,
    "upperLetter": lambda count: _letters(count).upper(),
    "lowerRoman": _roman,
    "upperRoman": lambda count: _roman(count).upper(),
    "ordinal": _ordinal,
    "decimalZero": lambda count: f"{count:02}",
    "none": lambda _: "",
    "bullet": lambda _: "",
    "russianLower": lambda count: "абвгдежзиклмнопрстуфхцчшщэюя"[(count - 1) % 28],
    "russianUpper": lambda count: "АБВГДЕЖЗИКЛМНОПРСТУФХЦЧШЩЭЮЯ"[(count - 1) % 28],
    "decimalEnclosedCircle": lambda count: chr(0x245F + count) if count <= 20 else f"({count})",
}


def _level(element: Any) -> _Level:  # noqa: ANN401
    # Word puts rare forms into alternate content, whose fallback is the nearest usual one.
    restart = _value(element, "lvlRestart")
    return _Level(
        start=whole(_value(element, "start"), 1),
        form=_value(element, "numFmt") or _nested_form(element) or "decimal",
        pattern=_value(element, "lvlText") or "",
        restarts_after=None if restart is None else whole(restart, 0),
        is_legal=element.find(f"{_W}isLgl") is not None,
    )


def _nested_form(element: Any) -> str | None:  # noqa: ANN401
    found = element.find(f".//{_W}numFmt")
    return None if found is None else found.get(f"{_W}val")


def _place(element: Any) -> int:  # noqa: ANN401
    place = whole(element.get(f"{_W}ilvl"), -1)
    return place if place < _NUM_LEVELS else -1


def _value(element: Any, name: str) -> str | None:  # noqa: ANN401
    found = element.find(_W + name)
    return None if found is None else found.get(f"{_W}val")
