"""Request bodies as bytes: whole up to a limit, or line by line as they arrive."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from jobs.errors import MalformedJsonError, TooLargeError
from jobs.validation import from_validation

# Complaints of the fast parser that may hide a text that cannot be stored.
_TEXT_COMPLAINTS: Final = ("surrogate", "hex escape", "unicode", "control character")
Body = TypeVar("Body", bound=BaseModel)

# Pydantic makes an error of each unknown name, in 3 us that hold the interpreter's lock.
_MANY_QUOTES: Final = 20_000

# A refused body is still read up to this many times its limit, so that a caller still sending sees the
# response instead of a broken connection.
_DRAINED_LIMITS = 4


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a body.

    Attributes:
        number: counted from 1.
        content: without its line feed; None: the line exceeded the limit and was skipped.
    """

    number: int
    content: bytes | None


async def read_body(request: Request, *, max_bytes: int) -> bytearray:
    """Read the whole body into memory, without a second copy.

    Raises:
        TooLargeError: the body exceeds `max_bytes`, by its Content-Length or by what arrived.
    """
    declared = request.headers.get("content-length", "")
    too_large = declared.isdecimal() and int(declared) > max_bytes
    body = bytearray()
    num_bytes = 0
    async for chunk in request.stream():
        num_bytes += len(chunk)
        too_large = too_large or num_bytes > max_bytes
        if too_large:
            body.clear()
            if num_bytes > _DRAINED_LIMITS * max_bytes:
                break
        else:
            body += chunk
    if too_large:
        raise TooLargeError(f"The request body may have at most {max_bytes} bytes.")
    return body


async def read_lines(request: Request, *, max_line_bytes: int, max_bytes: int) -> AsyncIterator[Line]:
    """Yield the body's lines as they arrive, holding at most one line in memory.

    Raises:
        TooLargeError: the body exceeds `max_bytes`; the lines yielded before remain valid.
    """
    pending = bytearray()
    skipping = False
    number = 1
    num_bytes = 0
    async for chunk in request.stream():
        num_bytes += len(chunk)
        if num_bytes > max_bytes:
            raise TooLargeError(f"A bulk request may have at most {max_bytes} bytes.")
        *whole, rest = chunk.split(b"\n")
        for piece in whole:
            content = (
                None if skipping or len(pending) + len(piece) > max_line_bytes else bytes(pending + piece)
            )
            yield Line(number, content)
            pending.clear()
            skipping = False
            number += 1
        if skipping or len(pending) + len(rest) > max_line_bytes:
            skipping = True
            pending.clear()
        else:
            pending += rest
    if pending or skipping:
        yield Line(number, None if skipping else bytes(pending))


def has_many_names(raw: bytes | bytearray) -> bool:
    """Return True if a JSON body has so many names and texts that refusing it would take long."""
    num_quotes = raw.count(b'"')
    return num_quotes > _MANY_QUOTES and num_quotes - raw.count(b'\\"') > _MANY_QUOTES


def parse(model: type[Body], raw: bytes | bytearray) -> Body:
    """Parse and validate the request body.

    Raises:
        InvalidRequestError: the body is invalid; the error names the field and never repeats its value.
    """
    try:
        return model.model_validate_json(raw)
    except ValidationError as error:
        complaint = error.errors(include_url=False, include_context=False, include_input=False)[0]
        if complaint["type"] == "json_invalid" and any(hint in complaint["msg"] for hint in _TEXT_COMPLAINTS):
            _name_unstorable_field(model, raw)
        raise from_validation(error) from None  # the original holds the prompt


def _name_unstorable_field(model: type[BaseModel], raw: bytes | bytearray) -> None:
    """Raise an error that names the field whose text cannot be stored.

    Returns if a slower parser rejects the text as JSON too.
    """
    try:
        value = json.loads(raw.decode("utf-8", "surrogatepass"), strict=False)
    except UnicodeDecodeError:
        raise MalformedJsonError("The request body is not UTF-8.") from None
    except (ValueError, RecursionError):
        return
    try:
        model.model_validate(value)
    except ValidationError as error:
        named = from_validation(error)
        raise named from None
