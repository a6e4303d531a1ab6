"""Request bodies as bytes: whole ones under a limit, or lines while they arrive."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from jobs.errors import MalformedJsonError, TooLargeError
from jobs.validation import from_validation

# Complaints of the fast parser behind which a text that cannot be stored may hide.
_TEXT_COMPLAINTS: Final = ("surrogate", "hex escape", "unicode", "control character")
Body = TypeVar("Body", bound=BaseModel)

# A refused body is still read this many times its limit, so that the caller, who is sending, sees the answer
# instead of a broken connection.
_DRAINED_LIMITS = 4


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a body.

    Attributes:
        number: counted from 1.
        content: without its line feed; None: it was longer than the limit and has been skipped.
    """

    number: int
    content: bytes | None


async def read_body(request: Request, *, max_bytes: int) -> bytearray:
    """The whole body, held once.

    Raises:
        TooLargeError: it has more than `max_bytes`, by its Content-Length or by what arrived.
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
        raise TooLargeError(f"The request body may have {max_bytes} bytes at most.")
    return body


async def read_lines(request: Request, *, max_line_bytes: int, max_bytes: int) -> AsyncIterator[Line]:
    """The body's lines as they arrive; no more than one line is held.

    Raises:
        TooLargeError: the body has more than `max_bytes`; the lines before stand.
    """
    pending = bytearray()
    skipping = False
    number = 1
    num_bytes = 0
    async for chunk in request.stream():
        num_bytes += len(chunk)
        if num_bytes > max_bytes:
            raise TooLargeError(f"A bulk request may have {max_bytes} bytes at most.")
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


def parse(model: type[Body], raw: bytes | bytearray) -> Body:
    """The request's body, validated.

    Raises:
        InvalidRequestError: it names the field, and never repeats its value.
    """
    try:
        return model.model_validate_json(raw)
    except ValidationError as error:
        complaint = error.errors(include_url=False, include_context=False, include_input=False)[0]
        if complaint["type"] == "json_invalid" and any(hint in complaint["msg"] for hint in _TEXT_COMPLAINTS):
            _name_unstorable_field(model, raw)
        raise from_validation(error) from None  # the original holds the prompt


def _name_unstorable_field(model: type[BaseModel], raw: bytes | bytearray) -> None:
    """Raises the error that names the field; returns when the text is no JSON for a slower parser either."""
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
