"""Request bodies as bytes: whole up to a limit, or line by line as they arrive."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError
from starlette.requests import Request

from jobs.errors import InvalidRequestError, LongbatchError, MalformedJsonError, TooLargeError
from jobs.validation import complaints, from_validation

# Complaints of the fast parser that may hide a text that cannot be stored.
_TEXT_COMPLAINTS: Final = ("surrogate", "hex escape", "unicode", "control character")
Body = TypeVar("Body", bound=BaseModel)

_OBJECT: Final = TypeAdapter(dict[str, Any])

# Eight for each message of the longest conversation.
_MAX_TEXTS: Final = 32_768
# Members of lists and objects; a request has fewer, but for token ids and tensors.
MAX_VALUES: Final = 100_000
_SEPARATORS: Final = (b",", b"[", b"{")

# A refused body is still read up to this many times its limit, so that a caller still sending sees the
# response instead of a broken connection.
_DRAINED_LIMITS = 4
_DRAINED_BYTES_PER_SECOND: Final = 8 * 2**20


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a body.

    Attributes:
        number: counted from 1.
        content: without its line feed; None: the line exceeded the limit and was skipped.
    """

    number: int
    content: bytes | None


async def read_body(request: Request, *, max_bytes: int, max_values: int | None = MAX_VALUES) -> bytearray:
    """Read the whole body into memory, without a second copy.

    The rest of a refused body is read slowly, so that it costs little and its caller sees the response.

    Args:
        request: whose body it is.
        max_bytes: most bytes.
        max_values: most values, if it is JSON; None: any number.

    Raises:
        InvalidRequestError: the body has too many names and texts, or values.
        TooLargeError: it exceeds `max_bytes`, by its Content-Length or by what arrived.
    """
    declared = request.headers.get("content-length", "")
    too_large = TooLargeError(f"The request body may have at most {max_bytes} bytes.")
    refusal: LongbatchError | None = None
    if declared.isdecimal() and int(declared) > max_bytes:
        refusal = too_large
    body, shape, num_bytes = bytearray(), _Shape(max_values), 0
    async for chunk in request.stream():
        num_bytes += len(chunk)
        if refusal is None:
            refusal = too_large if num_bytes > max_bytes else shape.refusal_with(chunk)
        if refusal is None:
            body += chunk
            continue
        body.clear()
        if num_bytes > _DRAINED_LIMITS * max_bytes:
            break
        await asyncio.sleep(len(chunk) / _DRAINED_BYTES_PER_SECOND)
    if refusal is not None:
        raise refusal
    return body


class _Shape:
    """Counts the texts and values of JSON as it arrives.

    Parsing junk takes a hundred times as long: millions of values become objects, and unknown names errors.
    """

    def __init__(self, max_values: int | None) -> None:
        self._max_values = max_values
        self._num_quotes = 0
        self._num_values = 0
        self._held = b""  # a backslash whose character has not arrived

    def refusal_with(self, chunk: bytes) -> InvalidRequestError | None:
        """Add the next bytes; return the error if there is too much now."""
        if self._held or b"\\" in chunk:
            # First pairs: what is left of backslashes then escapes what comes after.
            chunk = (self._held + chunk).replace(b"\\\\", b"")
            self._held = b"\\" if chunk.endswith(b"\\") else b""
            chunk = chunk.replace(b'\\"', b"")
        parts = chunk.split(b'"')
        outside = b"".join(parts[self._num_quotes % 2 :: 2])
        self._num_quotes += len(parts) - 1
        self._num_values += sum(map(outside.count, _SEPARATORS))
        if self._num_quotes > 2 * _MAX_TEXTS:
            return InvalidRequestError(f"The request body may have at most {_MAX_TEXTS} names and texts.")
        if self._max_values is not None and self._num_values > self._max_values:
            return InvalidRequestError(f"The request body may have at most {self._max_values} values.")
        return None


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


def parse_object(raw: bytes | bytearray) -> dict[str, Any]:
    """Parse the request body as a JSON object.

    Raises:
        InvalidRequestError: it is none.
    """
    try:
        return _OBJECT.validate_json(raw)
    except ValidationError as error:
        raise from_validation(error) from None  # the original holds the prompt


def parse(model: type[Body], raw: bytes | bytearray) -> Body:
    """Parse and validate the request body.

    Raises:
        InvalidRequestError: the body is invalid; the error names the field and never repeats its value.
    """
    try:
        return model.model_validate_json(raw)
    except ValidationError as error:
        complaint = complaints(error)[0]
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
