"""Lines of batch files in OpenAI's format: parse and check the input, build the results."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

from pydantic_core import from_json, to_json

from jobs.database.base import JsonObject
from jobs.files.lines import FileLine
from jobs.states.batch import Endpoint

MAX_CUSTOM_ID: Final = 512
_FIELDS: Final = ("custom_id", "method", "url", "body")
_LINE_ENDS: Final = {char.encode(): f"\\u{ord(char):04x}".encode() for char in "\x85\u2028\u2029"}

EXPIRED: Final = ("batch_expired", "This request could not be executed before the completion window expired.")
CANCELLED: Final = ("batch_cancelled", "This request was not executed because the batch was cancelled.")


@dataclass(frozen=True, slots=True)
class Envelope:
    """One request of a batch.

    Attributes:
        body: as sent; not checked yet.
    """

    custom_id: str
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ErrorLine:
    """A line of an error file: which request did not complete, and why."""

    custom_id: str
    code: str
    message: str


class LineFaultError(ValueError):
    """A line that makes the whole batch invalid.

    Attributes:
        code: as OpenAI names it.
        param: the invalid field of the line, or None.
    """

    def __init__(self, code: str, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param

    def as_object(self, line: int | None) -> JsonObject:
        """Return the fault as it appears in the batch's `errors.data`."""
        return {"code": self.code, "line": line, "message": str(self), "param": self.param}


class SeenIds:
    """The custom ids seen so far; 16 bytes each, whatever their length."""

    def __init__(self) -> None:
        self._digests: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._digests)

    def __contains__(self, custom_id: str) -> bool:
        return _digest(custom_id) in self._digests

    def add(self, custom_id: str) -> bool:
        """Add a custom id, and return False if it was there already."""
        before = len(self._digests)
        self._digests.add(_digest(custom_id))
        return len(self._digests) > before


def read_envelope(line: FileLine, endpoint: Endpoint, *, max_line_bytes: int) -> Envelope:
    """Parse the request of a line.

    Raises:
        LineFaultError: the line makes the whole batch invalid.
    """
    if line.content is None:
        raise LineFaultError("request_too_large", f"A line may have at most {max_line_bytes} bytes.")
    request = _parse(line.content)
    for name in _FIELDS:
        if request.get(name) is None:
            raise LineFaultError(
                "missing_required_parameter", f"Missing required parameter: '{name}'.", param=name
            )
    if request["url"] != endpoint:
        message = f"The URL provided for this request does not match the batch endpoint {endpoint}."
        raise LineFaultError("url_mismatch", message, param="url")
    if request["method"] != "POST":
        raise LineFaultError("invalid_method", "The method must be POST.", param="method")
    custom_id, body = request["custom_id"], request["body"]
    if not isinstance(custom_id, str) or not _is_storable(custom_id):
        message = f"custom_id must be a string of 1 to {MAX_CUSTOM_ID} characters."
        raise LineFaultError("invalid_value", message, param="custom_id")
    if not isinstance(body, dict):
        raise LineFaultError("invalid_value", "body must be a JSON object.", param="body")
    return Envelope(custom_id, body)


def duplicate(custom_id: str) -> LineFaultError:
    """Build the fault of a line whose custom id an earlier line already uses."""
    shown = custom_id if len(custom_id) <= 64 else f"{custom_id[:64]}…"
    message = f"The custom_id for this request is a duplicate of another request: {shown}."
    return LineFaultError("duplicate_custom_id", message, param="custom_id")


def answered_line(identifier: str, custom_id: str, *, status: int, body: JsonObject) -> bytes:
    """Build the result of a request that was answered, with a completion or an error."""
    response: JsonObject = {"status_code": status, "request_id": f"req_{identifier}", "body": body}
    return _line(identifier, custom_id, response=response, error=None)


def unanswered_line(identifier: str, custom_id: str, reason: tuple[str, str]) -> bytes:
    """Build the result of a request that never ran; `reason` is a code and a message."""
    code, message = reason
    return _line(identifier, custom_id, response=None, error={"code": code, "message": message})


def read_error(line: bytes) -> ErrorLine:
    """Read a line that `answered_line` or `unanswered_line` built for a request that did not complete."""
    whole = from_json(line)
    error = whole["error"] or whole["response"]["body"]["error"]
    return ErrorLine(whole["custom_id"], str(error["code"]), str(error["message"]))


def _line(identifier: str, custom_id: str, *, response: JsonObject | None, error: JsonObject | None) -> bytes:
    whole = {"id": f"batch_req_{identifier}", "custom_id": custom_id, "response": response, "error": error}
    line = to_json(whole)
    # Many readers treat these as line ends; in JSON they can occur inside strings alone.
    for char, escaped in _LINE_ENDS.items():
        line = line.replace(char, escaped)
    return line + b"\n"


def _parse(content: bytes) -> dict[str, Any]:
    try:
        request = from_json(content, allow_inf_nan=False)
    except ValueError:
        request = _parse_slowly(content)
    if not isinstance(request, dict):
        raise LineFaultError("invalid_json_line", "This line is not a JSON object.")
    return request


def _parse_slowly(content: bytes) -> object:
    """Parse JSON with half a surrogate pair: valid, but the fast parser refuses it."""
    try:
        return json.loads(content.removeprefix(b"\xef\xbb\xbf"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise LineFaultError("invalid_json_line", "This line is not parseable as valid JSON.") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def _is_storable(custom_id: str) -> bool:
    if not 1 <= len(custom_id) <= MAX_CUSTOM_ID or "\0" in custom_id:
        return False
    try:
        custom_id.encode()
    except UnicodeEncodeError:
        return False
    return True


def _digest(custom_id: str) -> bytes:
    return blake2b(custom_id.encode(), digest_size=16).digest()
