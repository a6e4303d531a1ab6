"""How errors look on the wire: always `{"error": {"message", "type", "param", "code"}}`."""

from http import HTTPStatus
from typing import Final

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import Request

from jobs.errors import (
    AlreadyExistsError,
    AuthenticationError,
    ConflictError,
    CountingInterruptedError,
    DocumentNotReadyError,
    ForbiddenError,
    IdempotencyConflictError,
    InvalidRequestError,
    JobNotFinishedError,
    LimitError,
    LongbatchError,
    ModelNotFoundError,
    NotFoundError,
    PromptUncountableError,
    RequestCancelledError,
    RequestExpiredError,
    RequestFailedError,
    TooLargeError,
    UnavailableError,
)
from jobs.validation import from_validation

# A class answers for its subclasses; what is not listed is our own fault.
_STATUSES: Final[dict[type[LongbatchError], int]] = {
    InvalidRequestError: 400,
    AuthenticationError: 401,
    ForbiddenError: 403,
    ModelNotFoundError: 404,
    NotFoundError: 404,
    PromptUncountableError: 400,
    AlreadyExistsError: 409,
    ConflictError: 409,
    RequestCancelledError: 409,
    IdempotencyConflictError: 409,
    JobNotFinishedError: 409,
    DocumentNotReadyError: 409,
    TooLargeError: 413,
    LimitError: 429,
    RequestFailedError: 500,
    UnavailableError: 503,
    CountingInterruptedError: 503,
    RequestExpiredError: 504,
}
_RETRY_AFTER: Final = {"Retry-After": "1"}  # seconds
# OpenAI's clients repeat a 409 by themselves unless they are told not to.
_NO_RETRY: Final = {"x-should-retry": "false"}
# What is left of the body is not read: gigabytes, perhaps.
_CLOSE: Final = {"Connection": "close"}
_CHALLENGE: Final = {"WWW-Authenticate": "Bearer"}
_MAX_PATH_CHARS: Final = 64


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
    status = status_of(error)
    if status == HTTPStatus.INTERNAL_SERVER_ERROR and not isinstance(error, RequestFailedError):
        return internal_response()
    is_final = not error.retryable and status < HTTPStatus.INTERNAL_SERVER_ERROR
    headers: dict[str, str] = dict(_NO_RETRY) if is_final else {}
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers |= _RETRY_AFTER
    elif status == HTTPStatus.UNAUTHORIZED:
        headers |= _CHALLENGE
    elif status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        headers |= _CLOSE
    kind = None
    if isinstance(error, LimitError):
        headers |= _limit_headers(error)
        kind = error.limited
    body = envelope(status, error.code, error.message, param=error.param, kind=kind)
    return JSONResponse(body, status, headers)


def _limit_headers(error: LimitError) -> dict[str, str]:
    return {
        "Retry-After": str(error.retry_after_seconds),
        f"x-ratelimit-limit-{error.limited}": str(error.limit),
        f"x-ratelimit-remaining-{error.limited}": str(error.remaining),
        f"x-ratelimit-reset-{error.limited}": f"{error.retry_after_seconds}s",
    }


def status_of(error: LongbatchError) -> int:
    """The status that tells a caller of this error."""
    return next((code for kind, code in _STATUSES.items() if isinstance(error, kind)), 500)


def internal_response() -> JSONResponse:
    """500, without a word about what happened: that stands in the log under the request's id."""
    message = "The server failed to answer this request; its log has the x-request-id."
    return JSONResponse(envelope(500, "internal_error", message), 500)


def envelope(
    status: int, code: str, message: str, *, param: str | None = None, kind: str | None = None
) -> dict[str, object]:
    """The body of an error."""
    if kind is None:
        kind = "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _framework_response(request: Request, error: HTTPException) -> JSONResponse:
    """404 and 405 of the router, and the few others that the framework raises by itself."""
    path = request.url.path[:_MAX_PATH_CHARS]
    match error.status_code:
        case HTTPStatus.NOT_FOUND:
            body = envelope(404, "unknown_route", f"There is nothing at {path!r}; see /docs.")
        case HTTPStatus.METHOD_NOT_ALLOWED:
            body = envelope(405, "method_not_allowed", f"{request.method} does not work at {path!r}.")
        case status:
            body = envelope(status, "http_error", HTTPStatus(status).phrase)
    return JSONResponse(body, error.status_code, _NO_RETRY | dict(error.headers or {}))
