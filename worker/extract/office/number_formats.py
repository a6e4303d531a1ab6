"""Numbers of cells as a sheet shows them: percentages, amounts, fractions of a day; dates in ISO 8601.

A date is written as 2026-03-14, whatever the order of day and month in its format. Everything else follows
the format's own digits, separators, signs and texts, with a point for decimals.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import lru_cache
from typing import Final

GENERAL: Final = "General"
# The formats that files name by number only. Those of other languages are dates.
BUILT_IN: Final[Mapping[int, str]] = {
    0: GENERAL, 1: "0", 2: "0.00", 3: "#,##0", 4: "#,##0.00", 5: '"$"#,##0;-"$"#,##0',
    6: '"$"#,##0;-"$"#,##0',
    7: '"$"#,##0.00;-"$"#,##0.00', 8: '"$"#,##0.00;-"$"#,##0.00', 9: "0%", 10: "0.00%", 11: "0.00E+00",
    12: "# ?/?", 13: "# ??/??", 14: "yyyy-mm-dd", 15: "d-mmm-yy", 16: "d-mmm", 17: "mmm-yy", 18: "h:mm AM/PM",
    19: "h:mm:ss AM/PM", 20: "h:mm", 21: "h:mm:ss", 22: "yyyy-mm-dd h:mm", 37: "#,##0;(#,##0)",
    38: "#,##0;(#,##0)", 39: "#,##0.00;(#,##0.00)", 40: "#,##0.00;(#,##0.00)", 41: "#,##0;-#,##0;-",
    42: '"$"#,##0;-"$"#,##0;-', 43: "#,##0.00;-#,##0.00;-", 44: '"$"#,##0.00;-"$"#,##0.00;-', 45: "mm:ss",
    46: "[h]:mm:ss", 47: "mm:ss.0", 48: "##0.0E+0", 49: "@",
    **dict.fromkeys((*range(27, 37), *range(50, 59)), "yyyy-mm-dd"),
}  # fmt: skip
_MOST_FORMAT: Final = 500  # characters; Excel takes 255
# One piece of a format: text in quotes, an escaped character, a gap, a bracket, a word, or any character.
_PIECE: Final = re.compile(
    r'"(?P<text>[^"]*)"?|\\(?P<escaped>.)|[_*](?P<gap>.)|\[(?P<bracket>[^\]]*)\]?'
    r"|(?P<general>General|Standard|Estándar|Allgemein)|(?P<half>AM/PM|A/P|上午/下午)"
    r"|(?P<date>[yY]+|[mM]+|[dD]+|[hH]+|[sS]+(?:\.0+)?|[eE](?![+-])|[gGbB]+)"
    r"|(?P<power>[eE][+-])|(?P<other>.)",
    re.DOTALL,
)
_CONDITION: Final = re.compile(r"(<=|>=|<>|<|>|=)\s*(-?[\d.]+)")
_ELAPSED: Final = re.compile(r"(h+|m+|s+)", re.IGNORECASE)
_DIGITS: Final = "0#?"
_EPOCH: Final = datetime(1899, 12, 30)  # noqa: DTZ001  # cells have no time zone
_EPOCH_1904: Final = datetime(1904, 1, 1)  # noqa: DTZ001
_LAST_DAY: Final = 2_958_466  # the one after 9999-12-31
_LEAP: Final = 60  # the 29 February 1900, which never was; days before it count from one day later
_MOST_DIGITS: Final = 30  # of decimals, as in Excel
_CONTEXT: Final = Context(prec=_MOST_DIGITS + 20)


@dataclass(frozen=True, slots=True)
class _Section:
    """One of the up to four formats of a cell.

    Attributes:
        pieces: kind and text of each.
        condition: operator and limit; None: the place of the section decides.
    """

    pieces: Sequence[tuple[str, str]]
    condition: tuple[str, float] | None
    is_date: bool


def shown(value: float, code: str, *, is_1904: bool = False) -> str:
    """Return a number as a cell of this format shows it."""
    if value != value or value in {float("inf"), float("-inf")}:  # noqa: PLR0124  # NaN
        return str(value)
    if not code or code == GENERAL or len(code) > _MOST_FORMAT:
        return general(value)
    sections = _sections(code)
    section, is_negated = _section_for(value, sections)
    if section.is_date:
        return _date(value, section, is_1904=is_1904) or general(value)
    text = _number(-value if is_negated else value, section)
    return text if text.strip() or not value else general(value)  # a format that hides numbers


def general(value: float) -> str:
    """Return a number without a format: whole ones as such, others with eleven digits."""
    if float(value).is_integer() and abs(value) < 1e15:
        return str(int(value))
    return f"{value:.11g}" if 1e-5 <= abs(value) < 1e11 or not value else f"{value:.10g}"


@lru_cache(maxsize=256)
def _sections(code: str) -> tuple[_Section, ...]:
    found: list[_Section] = []
    pieces: list[tuple[str, str]] = []
    condition: tuple[str, float] | None = None

    def finish() -> None:
        nonlocal pieces, condition
        is_date = any(kind in {"date", "half", "elapsed"} for kind, _ in pieces)
        found.append(_Section(pieces, condition, is_date))
        pieces, condition = [], None

    for match in _PIECE.finditer(code):
        kind, text = match.lastgroup or "text", match[match.lastgroup or 0] or ""
        if kind == "other" and text == ";":
            finish()
        elif kind == "bracket":
            if text.startswith("$"):
                pieces.append(("text", text[1:].partition("-")[0]))
            elif limit := _CONDITION.fullmatch(text):
                condition = (limit[1], float(limit[2].strip(".") or 0))
            elif _ELAPSED.fullmatch(text):
                pieces.append(("elapsed", text.lower()))
        elif kind != "gap":
            pieces.append(("text" if kind == "escaped" else kind, text))
    finish()
    return tuple(found[:4])


def _section_for(value: float, sections: Sequence[_Section]) -> tuple[_Section, bool]:
    """Return the section for a number, and True if that shows it without its sign."""
    if any(each.condition for each in sections):
        for number, each in enumerate(sections[:3]):
            if each.condition is None or _holds(value, each.condition):
                return each, value < 0 and number > 0
        return sections[-1], False
    if len(sections) == 1 or value > 0 or (value == 0 and len(sections) == 2):
        return sections[0], False
    return (sections[1], True) if value < 0 else (sections[2], False)


def _holds(value: float, condition: tuple[str, float]) -> bool:
    operator, limit = condition
    return {
        "<": value < limit,
        ">": value > limit,
        "=": value == limit,
        "<=": value <= limit,
        ">=": value >= limit,
        "<>": value != limit,
    }[operator]


def moment(value: float, *, is_1904: bool = False) -> datetime | None:
    """Return date and time of a number of days, to the millisecond; None if there is no such date."""
    if not 0 <= value < _LAST_DAY:
        return None
    epoch = _EPOCH_1904 if is_1904 else _EPOCH + timedelta(days=value < _LEAP)
    try:
        return epoch + timedelta(milliseconds=round(value * 86_400_000))
    except OverflowError:
        return None


def _date(value: float, section: _Section, *, is_1904: bool) -> str | None:
    """Return date or time in ISO 8601, with as many parts as the format shows."""
    for kind, text in section.pieces:
        if kind == "elapsed":
            return _elapsed(value, section, text[0])
    letters = _date_letters(section)
    when = moment(value, is_1904=is_1904)
    if when is None or (value < 1 and not is_1904 and letters & set("yd") and not letters & set("hs")):
        return None  # no date, or the day zero
    has_seconds = "s" in letters
    if has_seconds and not any(kind == "date" and "." in text for kind, text in section.pieces):
        when = (when + timedelta(milliseconds=500)).replace(microsecond=0)
    elif "h" in letters and not has_seconds:
        when += timedelta(milliseconds=500)  # 9:29:59.9996 is an error of the fraction
    day = f"{when:%Y-%m-%d}" if when.year >= 1000 else when.date().isoformat()
    if letters & set("ymd"):
        if letters & set("d") == set() and "w" not in letters:
            day = day[:7] if "m" in letters else day[:4] if "y" in letters else day
    else:
        day = ""
    time = ""
    if letters & set("hs"):
        time = f"{when:%H:%M:%S}" if has_seconds else f"{when:%H:%M}"
        if has_seconds and when.microsecond:
            time += f".{when.microsecond // 1000:03}".rstrip("0")
    return f"{day} {time}".strip()


def _date_letters(section: _Section) -> set[str]:
    """Return the parts that the format shows: y, m (month), d, w (weekday), h (minutes too) and s."""
    words = [text.lower()[0] for kind, text in section.pieces if kind == "date"]
    letters = set()
    for place, letter in enumerate(words):
        if letter == "m" and ("h" in words[:place][-1:] or "s" in words[place + 1 :][:1]):
            letters.add("h" if "h" in words else "s")
        elif letter in "ge":
            letters.add("y")
        else:
            letters.add("y" if letter == "b" else letter)
    if any(kind == "date" and text.lower().startswith("ddd") for kind, text in section.pieces):
        letters |= {"w", "d"}
    if any(kind == "half" for kind, _ in section.pieces):
        letters.add("h")
    return letters


def _elapsed(value: float, section: _Section, unit: str) -> str:
    """Return a duration, as 27:30:00."""
    sign, total = ("-" if value < 0 else ""), round(abs(value) * 86_400)
    has_seconds = unit == "s" or any(kind == "date" and text[0] in "sS" for kind, text in section.pieces)
    minutes, seconds = divmod(total, 60)
    if unit == "s":
        return f"{sign}{total}"
    if unit == "m":
        return f"{sign}{minutes}" + (f":{seconds:02}" if has_seconds else "")
    hours, minutes = divmod(minutes, 60)
    return f"{sign}{hours}:{minutes:02}" + (f":{seconds:02}" if has_seconds else "")


def _number(value: float, section: _Section) -> str:
    """Return a number with the format's digits, and its texts around and between them."""
    pieces = section.pieces
    if any(kind == "general" for kind, _ in pieces):
        number = general(abs(value))
        text = "".join(number if kind == "general" else text for kind, text in pieces)
        return ("-" if value < 0 else "") + text
    places = [at for at, (kind, text) in enumerate(pieces) if kind == "other" and text in _DIGITS]
    if not places:
        text = "".join(general(value) if kind == "other" and text == "@" else text for kind, text in pieces)
        has_sign = value < 0 and text.strip() and "@" not in [each for _, each in pieces]
        return ("-" if has_sign else "") + text.strip()
    first, last = places[0], places[-1]
    between = pieces[first : last + 1]
    shape = "".join(text if kind == "other" else "E" if kind == "power" else "" for kind, text in between)
    after = list(pieces[last + 1 :])
    scale = 0
    while after and after[0] == ("other", ","):
        scale += 1
        after.pop(0)
    num_percent = sum(text == "%" for kind, text in pieces if kind == "other")
    scaled = Decimal(repr(float(value))).scaleb(2 * num_percent - 3 * scale)
    if "/" in shape:
        digits = general(float(abs(scaled)))
    elif "E" in shape:
        mantissa, _, _ = shape.partition("E")
        digits = _scientific(abs(scaled), mantissa)
    else:
        digits = _decimal(abs(scaled), shape, between)
    is_zero = not any(each in "123456789" for each in digits)
    before = "".join(text for _, text in pieces[:first]).lstrip(" ")
    sign = "-" if value < 0 and not is_zero else ""
    return f"{sign}{before}{digits}{''.join(text for _, text in after)}".strip()


def _decimal(number: Decimal, shape: str, between: Sequence[tuple[str, str]]) -> str:
    whole_shape, _, decimal_shape = shape.partition(".")
    places = [each for each in decimal_shape if each in _DIGITS][:_MOST_DIGITS]
    rounded = number
    if number < 10**15:
        rounded = number.quantize(Decimal(1).scaleb(-len(places)), ROUND_HALF_UP, _CONTEXT)
    whole, _, decimals = f"{rounded:f}".partition(".")
    while decimals and places and len(places) == len(decimals) and decimals[-1] == "0" and places[-1] != "0":
        decimals, places = decimals[:-1], places[:-1]
    num_zeros = whole_shape.count("0")
    whole = whole.lstrip("0").rjust(num_zeros, "0")
    if _has_texts(between):
        return _spread(whole + decimals, between)
    if "," in whole_shape:
        head = len(whole) % 3
        whole = ",".join(
            ([whole[:head]] if head else []) + [whole[at : at + 3] for at in range(head, len(whole), 3)]
        )
    if not whole and not decimals and "#" in shape:
        whole = "0"
    return whole + (f".{decimals}" if decimals else "")


def _has_texts(between: Sequence[tuple[str, str]]) -> bool:
    """Return True if there is text among the digits of whole numbers, as in phone numbers."""
    has_point = any(kind == "other" and text == "." for kind, text in between)
    return not has_point and any(
        kind == "text" or (kind == "other" and text not in {*_DIGITS, ",", "."}) for kind, text in between
    )


def _spread(digits: str, between: Sequence[tuple[str, str]]) -> str:
    """Put the digits into their places from the right; the first place takes all that are left."""
    num_places = sum(kind == "other" and text in _DIGITS for kind, text in between)
    out: list[str] = []
    left = digits
    for kind, text in reversed(between):
        if kind == "other" and text in _DIGITS:
            num_places -= 1
            taken = left if num_places == 0 else left[-1:]
            left = "" if num_places == 0 else left[:-1]
            out.append(taken or ("0" if text == "0" else ""))
        elif text != ",":
            out.append(text)
    return "".join(reversed(out))


def _scientific(number: Decimal, mantissa: str) -> str:
    places = sum(each in _DIGITS for each in mantissa.partition(".")[2])
    return f"{number:.{min(places, _MOST_DIGITS)}E}"
