"""The value of a field, joined by a rule from what the parts of a document said, with its sources. Pure.

A part that says nothing of a field has no vote. A part that could not be asked is a gap of all fields.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from jobs.extractions.fields import Field
from jobs.extractions.replies import MalformedExtractionError, Said, parse_values
from jobs.questions.joining import AskedPart, Error, gap_of, unanswered
from jobs.questions.quotes import QuotableText, pages_of
from jobs.states.summary import JoinRule

_MAX_SOURCES: Final = 100  # of one field; so many parts prove it

Source = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class FieldValue:
    """What a document says of a field.

    Attributes:
        value: any JSON; None: nothing.
        sources: `{quote, quote_in_text, start, end, pages}` of each part that said it, in order: at most 100.
            `quote_in_text` is null without a quote or a text, `pages` are those of the quote if it is in the
            text, otherwise of the part.
    """

    value: Any = None
    sources: tuple[Source, ...] = ()


@dataclass(frozen=True, slots=True)
class Extracted:
    """What a document says of all fields.

    Attributes:
        values: in the order of the fields.
        gaps: parts that could not be asked, `{start, end, pages, error}` each.
        error: why nothing is known; None: a part at least was asked.
    """

    values: Sequence[FieldValue] = ()
    gaps: tuple[Mapping[str, object], ...] = ()
    error: Error | None = None

    def row(self, fields: Sequence[Field]) -> dict[str, Any]:
        """Return the values by name: null for what was not found, if its field may be, otherwise left out."""
        return {
            field.name: found.value
            for field, found in zip(fields, self.values, strict=True)
            if found.value is not None or field.is_nullable
        }


def conclude(
    parts: Sequence[AskedPart],
    fields: Sequence[Field],
    *,
    text: QuotableText | None,
    page_starts: Sequence[int] = (),
) -> Extracted:
    """Draw each field's value from the replies about the parts.

    Args:
        parts: of the document, in order; at least one.
        fields: in the caller's order.
        text: of the document; None: it no longer exists.
        page_starts: the character at which each page starts.
    """
    names = {each.name for each in fields}
    replies = [_reply(part, names) for part in parts]
    gaps = tuple(
        gap_of(part, error) for part, (_, error) in zip(parts, replies, strict=True) if error is not None
    )
    if len(gaps) == len(parts):
        return Extracted(gaps=gaps if len(parts) > 1 else (), error=replies[0][1])
    values = []
    for field in fields:
        said = [
            (part, reply[field.name])
            for part, (reply, _) in zip(parts, replies, strict=True)
            if field.name in reply and isinstance(reply[field.name].value, _TAKES[field.rule])
        ]
        value, chosen = _JOINS[field.rule]([each.value for _, each in said]) if said else (None, [])
        sources = (_source(*said[place], text, page_starts) for place in chosen[:_MAX_SOURCES])
        values.append(FieldValue(value, tuple(sources)))
    return Extracted(values, gaps)


def _reply(part: AskedPart, names: set[str]) -> tuple[Mapping[str, Said], Error | None]:
    """Return what the part says, or the error for which that is not known."""
    if part.ended.output is None:
        return {}, unanswered(part.ended)
    try:
        return parse_values(part.ended.output, names), None
    except MalformedExtractionError as error:
        return {}, {"code": error.code, "message": error.message}


def _source(
    part: AskedPart, said: Said, text: QuotableText | None, page_starts: Sequence[int]
) -> dict[str, object]:
    place = text.find(said.quote) if text is not None and said.quote else None
    pages = pages_of(page_starts, *place) if place else part.pages
    return {
        "quote": said.quote,
        "quote_in_text": None if text is None or said.quote is None else place is not None,
        "start": place[0] if place else None,
        "end": place[1] if place else None,
        "pages": None if pages is None else list(pages),
    }


# A reply that was cut off after its last brace has not been checked by the schema.
_TAKES: Final[Mapping[JoinRule, type | tuple[type, ...]]] = {
    JoinRule.FIRST: object,
    JoinRule.ALL: list,
    JoinRule.SUM: (int, float),
    JoinRule.MOST_FREQUENT: object,
}
# A joined value, and the places of those that say it.
_Joined = tuple[Any, Sequence[int]]


def _first(values: Sequence[Any]) -> _Joined:
    return values[0], [0]


def _all(values: Sequence[Any]) -> _Joined:
    elements: dict[str, Any] = {}
    for value in values:
        for element in value:
            elements.setdefault(_key(element), element)
    return [*elements.values()], [place for place, value in enumerate(values) if value]


def _sum(values: Sequence[Any]) -> _Joined:
    places = range(len(values))
    if all(isinstance(each, int) for each in values):
        return sum(values), places
    # As they are written: 0.1 and 0.2 are 0.3.
    return float(sum(Decimal(repr(each)) for each in values)), places


def _most_frequent(values: Sequence[Any]) -> _Joined:
    places: dict[str, list[int]] = {}
    for place, value in enumerate(values):
        places.setdefault(_key(value), []).append(place)
    most = max(places.values(), key=len)  # the first of equals
    return values[most[0]], most


_JOINS: Final = {
    JoinRule.FIRST: _first,
    JoinRule.ALL: _all,
    JoinRule.SUM: _sum,
    JoinRule.MOST_FREQUENT: _most_frequent,
}


def _key(value: object) -> str:
    """Write a value so that equal ones are alike: texts whatever their case and white space."""
    match value:
        case str():
            return json.dumps(" ".join(value.casefold().split()))
        case float() if value.is_integer():
            return json.dumps(int(value))
        case list():
            return f"[{','.join(map(_key, value))}]"
        case dict():
            return f"{{{','.join(f'{name!r}:{_key(each)}' for name, each in sorted(value.items()))}}}"
    return json.dumps(value)
