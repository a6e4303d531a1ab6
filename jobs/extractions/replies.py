"""What a model replies about the fields of a text: how it is read."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from jobs.errors import LongbatchError
from jobs.questions.replies import first_object, storable

_MAX_DEPTH: Final = 64  # as deep as schemas may be
_MAX_NUMBER: Final = 1e300  # sums of all parts stay finite


class MalformedExtractionError(LongbatchError):
    """The model's reply does not have the form that was asked for; a long one may have been cut off."""

    code = "malformed_extraction"


@dataclass(frozen=True, slots=True)
class Said:
    """What a text says of a field.

    Attributes:
        value: any JSON but null.
        quote: the words that it is taken from; None: the model gave none.
    """

    value: Any
    quote: str | None


def parse_values(text: str, names: Collection[str]) -> Mapping[str, Said]:
    """Read a reply: what the text says of those fields that it has.

    Raises:
        MalformedExtractionError: it is no object of these fields, or nothing that can be stored.
    """
    found = first_object(text)
    if not isinstance(found, dict) or names - found.keys():
        raise MalformedExtractionError
    said: dict[str, Said] = {}
    for name in names:
        match found[name]:
            case {"value": None}:
                continue
            case {"value": value, "quote": str(quote)}:
                said[name] = Said(_checked(value), storable(quote.strip()) or None)
            case _:
                raise MalformedExtractionError
    return said


def _checked(value: Any, *, depth: int = 0) -> Any:  # noqa: ANN401  # JSON
    """Return a value as a database takes it."""
    match value:
        case str():
            return storable(value)
        case bool() | None:
            return value
        case int() | float() if abs(value) <= _MAX_NUMBER:  # NaN is not
            return value
        case list() if depth < _MAX_DEPTH:
            return [_checked(each, depth=depth + 1) for each in value]
        case dict() if depth < _MAX_DEPTH:
            return {storable(name): _checked(each, depth=depth + 1) for name, each in value.items()}
    raise MalformedExtractionError
