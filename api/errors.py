"""How errors look on the wire: always `{"error": {"message", "type", "param", "code"}}`."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request

from jobs.errors import (
    IdempotencyConflictError,
    InvalidRequestError,
    JobNotFinishedError,
    LongbatchError,
    MalformedJsonError,
    MissingFieldError,
    NotFoundError,
    TooLargeError,
    UnavailableError,
    UnknownFieldError,
)

# A class answers for its subclasses; what is not listed is our own fault.
_STATUSES: Final[dict[type[LongbatchError], int]] = {
    InvalidRequestError: 400,
    NotFoundError: 404,
    IdempotencyConflictError: 409,
    JobNotFinishedError: 409,
    TooLargeError: 413,
    UnavailableError: 503,
}
_RETRY_AFTER: Final = {"Retry-After": "1"}  # seconds
# A caller's own field name is repeated, but never more of it than names anything.
_MAX_PARAM_CHARS: Final = 64
# What pydantic puts into a location beside field names: the branches of a union, and "this is a key".
_BRANCHES: Final = frozenset({"text", "messages", "[key]"})


def add_handlers(app: FastAPI) -> None:
    """Every error of this application leaves in the one shape, the framework's own included."""

    @app.exception_handler(LongbatchError)
    async def of_domain(_request: Request, error: LongbatchError) -> JSONResponse:
        return response(error)

    @app.exception_handler(RequestValidationError)
    async def of_parameters(_request: Request, error: RequestValidationError) -> JSONResponse:
        return response(from_validation(error.errors(), outer=1))

    @app.exception_handler(HTTPException)
    async def of_framework(request: Request, error: HTTPException) -> JSONResponse:
        return _framework_response(request, error)


def response(error: LongbatchError) -> JSONResponse:
    """The error as an answer; what a caller cannot mend says nothing about our insides."""
    status = next((code for kind, code in _STATUSES.items() if isinstance(error, kind)), 500)
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        return internal_response()
    headers = _RETRY_AFTER if status == HTTPStatus.SERVICE_UNAVAILABLE else None
    return JSONResponse(envelope(status, error.code, error.message, param=error.param), status, headers)


def internal_response() -> JSONResponse:
    """500, without a word about what happened: that stands in the log under the request's id."""
    message = "The server failed to answer this request; its log has the x-request-id."
    return JSONResponse(envelope(500, "internal_error", message), 500)


def envelope(status: int, code: str, message: str, *, param: str | None = None) -> dict[str, object]:
    """The body of an error."""
    kind = "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def from_validation(found: Sequence[Any] | ValidationError, *, outer: int = 0) -> InvalidRequestError:
    """The first of pydantic's complaints as one error that names the field and never repeats its value.

    Args:
        found: the exception, or the list that FastAPI makes of it.
        outer: how many leading parts of a location are no field names ("query").
    """
    if isinstance(found, ValidationError):
        found = found.errors(include_url=False, include_context=False, include_input=False)
    first: Mapping[str, Any] = found[0]
    param = _param(first["loc"][outer:])
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
            return InvalidRequestError(f"{param or 'a name'}: {first['msg']}", param=param)


def _param(location: Sequence[str | int]) -> str | None:
    """The dotted name of a field: `input.0.content`; a pair of `metadata` is named by the field alone."""
    parts = [str(part) for part in location if part not in _BRANCHES]
    if not parts:
        return None
    name = parts[0] if parts[0] == "metadata" else ".".join(parts)
    shown = "".join(char if char.isprintable() else "?" for char in name[:_MAX_PARAM_CHARS])
    return shown or "?"


def _framework_response(request: Request, error: HTTPException) -> JSONResponse:
    """404 and 405 of the router, and the few others that the framework raises by itself."""
    path = request.url.path[:_MAX_PARAM_CHARS]
    match error.status_code:
        case HTTPStatus.NOT_FOUND:
            body = envelope(404, "unknown_route", f"There is nothing at {path!r}; see /docs.")
        case HTTPStatus.METHOD_NOT_ALLOWED:
            body = envelope(405, "method_not_allowed", f"{request.method} does not work at {path!r}.")
        case status:
            body = envelope(status, "http_error", HTTPStatus(status).phrase)
    return JSONResponse(body, error.status_code, error.headers)
