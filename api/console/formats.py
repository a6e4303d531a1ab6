"""How pages write values: moments, spans, numbers, ids. All text is escaped."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import urlencode

from markupsafe import Markup, escape

from jobs.errors import InvalidRequestError
from jobs.views import rfc3339

_UNITS: Final = ((86_400, "d"), (3600, "h"), (60, "min"))
NOTHING: Final = "\N{EN DASH}"


def moment(value: datetime | None) -> Markup:
    """Write a moment in UTC; the script adds the reader's local time."""
    if value is None:
        return escape(NOTHING)
    shown = value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
    return Markup('<time datetime="{}">{} UTC</time>').format(rfc3339(value), shown)


def chosen(given: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Return the filters of an address or a form that are not empty, as text that a column can hold."""
    values = {name: given.get(name, "").replace("\0", "\N{REPLACEMENT CHARACTER}").strip() for name in names}
    return {name: value for name, value in values.items() if value}


def parse_moment(text: str) -> datetime:
    """Read a moment of this millennium that one of our forms carries.

    Raises:
        InvalidRequestError: it is none.
    """
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None or not 2000 <= found.year < 3000:
        raise InvalidRequestError("The form has no moment; open its page again.")
    return found


def span(value: timedelta | float | None) -> str:
    """Write a span by its two largest units: `3 d 4 h`, `12 min 5 s`, `0.4 s`."""
    if value is None:
        return NOTHING
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    left = round(seconds)
    parts: list[str] = []
    for size, unit in (*_UNITS, (1, "s")):
        number, left = divmod(left, size)
        if number or parts:
            parts.append(f"{number} {unit}")
    return " ".join(each for each in parts[:2] if not each.startswith("0 "))


def number(value: float | None) -> str:
    """Write a number with thin groups of thousands."""
    return NOTHING if value is None else f"{value:,}"


def size(num_bytes: int) -> str:
    """Write a number of bytes by its largest unit: `12 B`, `3.4 kB`, `1.5 MB`."""
    value, unit = float(num_bytes), "B"
    for larger in ("kB", "MB", "GB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"


def query(fields: Mapping[str, object]) -> str:
    """Write those fields that have a value as a query string, with its question mark."""
    given = {name: str(value) for name, value in fields.items() if value not in (None, "")}
    return f"?{urlencode(given)}" if given else ""
