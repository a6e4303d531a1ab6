"""Field types of requests and replies, and pydantic's complaints as errors that name the field."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any, Final

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetPydanticSchema,
    ValidationError,
    WithJsonSchema,
)
from pydantic_core import ErrorDetails, PydanticCustomError, core_schema

from jobs.errors import InvalidRequestError, MalformedJsonError, MissingFieldError, UnknownFieldError

# Most output of one request: together with any prompt (16 million tokens are far more than fit), it fits
# an integer of four bytes.
MAX_OUTPUT_TOKENS: Final = 2**31 - 1 - 2**24
MAX_TOP_K: Final = 1024  # TensorRT-LLM's sampling kernels take no more
# An error repeats a caller's own field name, but no more of it than a real name would need.
_MAX_PARAM_CHARS: Final = 64
# What pydantic puts into a location besides field names: the branches of a union, and "this is a key".
_BRANCHES: Final = frozenset(
    {"text", "messages", "[key]", "[plain]", "[assistant]", "[tool]", "[mode]", "[named]"}
)
# Pydantic lists 100,000 in a second.
_MAX_FAULTS: Final = 1000
# Template variables are switches and short texts; they are kept with each prompt.
_MAX_VARIABLES_BYTES: Final = 4096
_MAX_VARIABLES_DEPTH: Final = 16  # far below what any JSON reader or Jinja can recurse into
# Objects whose names are the caller's own.
_WHOLE_FIELDS: Final = frozenset({"chat_template_kwargs", "guided_json", "logit_bias", "metadata"})
# Pydantic's message for a text whose length is checked after another validator.
_LENGTH: Final = re.compile(r"Value should have at (least|most) (\d+) items? after validation, not (\d+)")


def _storable(text: str) -> str:
    if "\0" in text:
        raise PydanticCustomError("nul", "the character U+0000 cannot be stored.")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise PydanticCustomError(
            "lone_surrogate", "half of a surrogate pair is not a character and cannot be stored."
        ) from None
    return text


def _one_line(text: str) -> str:
    """Refuse what moves a terminal's cursor, or hides in a log."""
    if not text.isprintable() or not text.strip():
        raise PydanticCustomError("line", "must be one line of printable characters.")
    return text


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _bounded(variables: dict[str, Any]) -> dict[str, Any]:
    _check_variable(variables, depth=1)
    try:
        written = json.dumps(variables, ensure_ascii=False, allow_nan=False).encode()
    except ValueError:
        raise PydanticCustomError("variables", "must be JSON of finite numbers.") from None
    if len(written) > _MAX_VARIABLES_BYTES:
        raise PydanticCustomError("variables", f"must not exceed {_MAX_VARIABLES_BYTES} bytes of JSON.")
    return variables


def _check_variable(value: object, *, depth: int) -> None:
    if depth > _MAX_VARIABLES_DEPTH:
        raise PydanticCustomError(
            "variables", f"must not be nested more than {_MAX_VARIABLES_DEPTH} levels deep."
        )
    match value:
        case str():
            _storable(value)
        case list():
            for each in value:
                _check_variable(each, depth=depth + 1)
        case dict():
            for name, each in value.items():
                _storable(name)
                _check_variable(each, depth=depth + 1)


# The fields of a request that become its job's sampling.
SAMPLING: Final = {"temperature", "top_p", "top_k", "seed", "stop"}

Text = Annotated[str, AfterValidator(_storable)]
NonEmpty = Annotated[Text, Field(min_length=1)]
Line = Annotated[NonEmpty, AfterValidator(_one_line)]
CustomId = Annotated[NonEmpty, Field(max_length=256)]
Metadata = Annotated[
    dict[Annotated[NonEmpty, Field(max_length=64)], Annotated[Text, Field(max_length=512)]],
    Field(max_length=16),
]
TemplateVariables = Annotated[dict[str, Any], AfterValidator(_bounded)]
StopString = Annotated[NonEmpty, Field(max_length=256)]
Stop = Annotated[
    list[StopString],
    Field(max_length=4),
    BeforeValidator(_as_list),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "minLength": 1, "maxLength": 256},
                {
                    "type": "array",
                    "maxItems": 4,
                    "items": {"type": "string", "minLength": 1, "maxLength": 256},
                },
            ]
        }
    ),
]


def choice(names: Iterable[str]) -> GetPydanticSchema:
    """Restrict a field to these names, as `Literal` does."""
    schema = core_schema.literal_schema([str(name) for name in names])
    return GetPydanticSchema(lambda _source, _handler: schema)


def documented_as(kind: object) -> GetPydanticSchema:
    """Describe a field's JSON by another type than its own: a moment that is written as text."""
    return GetPydanticSchema(lambda _source, handler: handler.generate_schema(kind))


WINDOWS: Final = {"1h": timedelta(hours=1), "24h": timedelta(hours=24), "7d": timedelta(days=7)}
CompletionWindow = Annotated[str, choice(WINDOWS)]


class Closed(BaseModel):
    """A JSON object of exact types that rejects unknown fields."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class CachePolicy(Closed):
    """How old a result may be that a request takes instead of a run of its own."""

    max_age_seconds: int = Field(ge=1, le=30 * 86_400, description="counted from the end of the equal job")


def complaints(error: ValidationError) -> list[ErrorDetails]:
    """List what is wrong with a request.

    Raises:
        InvalidRequestError: so much is wrong that a list of it would take long.
    """
    if (num_faults := error.error_count()) > _MAX_FAULTS:
        raise InvalidRequestError(
            f"The request body has {num_faults} faults, such as unknown fields."
        ) from None  # the original holds the prompt
    return error.errors(include_url=False, include_input=False)


def from_validation(
    found: Sequence[Any] | ValidationError, *, outer: int = 0, branches: frozenset[str] = _BRANCHES
) -> InvalidRequestError:
    """Turn pydantic's first complaint into an error that names the field.

    Never repeats the field's value.

    Args:
        found: the exception, or the list that FastAPI makes of it.
        outer: how many leading parts of a location are not field names ("query").
        branches: parts of a location that name no field.
    """
    if isinstance(found, ValidationError):
        found = complaints(found)
    first: Mapping[str, Any] = found[0]
    param = _param(first["loc"][outer:], branches)
    match first["type"]:
        case "json_invalid":
            return MalformedJsonError(first["msg"])
        case "model_type" | "dict_type" if param is None:
            return MalformedJsonError("The request body must be a JSON object.")
        case "extra_forbidden":
            return UnknownFieldError(f"There is no field {param!r} here.", param=param)
        case "missing":
            return MissingFieldError(f"The field {param!r} is required.", param=param)
        case _:
            return InvalidRequestError(f"{param or 'a name'}: {_sentence(first['msg'])}", param=param)


def _sentence(message: str) -> str:
    """Make a complaint a sentence; one about a length counts characters, not items."""
    found = _LENGTH.fullmatch(message)
    if found is None:
        return f"{message[:1].upper()}{message[1:].rstrip('.')}."
    if found[3] == "0":
        return "Must not be empty."
    return f"Must have at {found[1]} {found[2]} characters, not {found[3]}."


def _param(location: Sequence[str | int], branches: frozenset[str]) -> str | None:
    """Join a location into a dotted field name: `input.0.content`.

    A pair of an object with names of the caller's own is named by the field alone.

    Returns:
        None if no part of the location names a field.
    """
    parts = [str(part) for part in location if part not in branches]
    if not parts:
        return None
    name = parts[0] if parts[0] in _WHOLE_FIELDS else ".".join(parts)
    shown = "".join(char if char.isprintable() else "?" for char in name[:_MAX_PARAM_CHARS])
    return shown or "?"
