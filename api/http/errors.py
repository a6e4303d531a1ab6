"""Errors on the wire: always `{"error": {"message", "type", "param", "code"}}`.

Of quotas `error` has `limit` and `limit_of` besides.
"""

from http import HTTPStatus
from typing import Final

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import Request

from jobs.errors import (
    AdapterForbiddenError,
    AlreadyExistsError,
    AuthenticationError,
    ConflictError,
    CountingInterruptedError,
    DocumentNotReadyError,
    ForbiddenError,
    IdempotencyConflictError,
    InvalidRequestError,
    JobNotFinishedError,
    KeyNotUsableError,
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
from jobs.sealing.content import ContentUnreadableError
from jobs.validation import from_validation

# A class covers its subclasses; an error that is not listed is an internal one.
_STATUSES: Final[dict[type[LongbatchError], int]] = {
    InvalidRequestError: 400,
    AuthenticationError: 401,
    AdapterForbiddenError: 403,
    ForbiddenError: 403,
    ModelNotFoundError: 404,
    NotFoundError: 404,
    PromptUncountableError: 400,
    AlreadyExistsError: 409,
    ConflictError: 409,
    KeyNotUsableError: 409,
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
# OpenAI's clients retry a 409 unless this header forbids it.
_NO_RETRY: Final = {"x-should-retry": "false"}
# The rest of the body, possibly gigabytes, is not read.
_CLOSE: Final = {"Connection": "close"}
_CHALLENGE: Final = {"WWW-Authenticate": "Bearer"}
_MAX_PATH_CHARS: Final = 64


def add_handlers(app: FastAPI) -> None:
    """Make every error leave in the one shape, the framework's own included."""

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
    """Render the error as a response; internal errors reveal nothing about the server."""
    status = status_of(error)
    is_unreadable = isinstance(error, ContentUnreadableError)
    is_told = is_unreadable or isinstance(error, RequestFailedError)
    if status == HTTPStatus.INTERNAL_SERVER_ERROR and not is_told:
        return internal_response()
    is_final = is_unreadable or (not error.retryable and status < HTTPStatus.INTERNAL_SERVER_ERROR)
    headers: dict[str, str] = dict(_NO_RETRY) if is_final else {}
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers |= _RETRY_AFTER
    elif status == HTTPStatus.UNAUTHORIZED:
        headers |= _CHALLENGE
    elif status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        headers |= _CLOSE
    kind, facts = None, dict[str, object]()
    if isinstance(error, LimitError):
        headers |= _limit_headers(error)
        kind = error.limited
        facts = {} if error.of is None else {"limit": error.limit, "limit_of": error.of.value}
    body = envelope(status, error.code, error.message, param=error.param, kind=kind, **facts)
    return JSONResponse(body, status, headers)


def _limit_headers(error: LimitError) -> dict[str, str]:
    return {
        "Retry-After": str(error.retry_after_seconds),
        f"x-ratelimit-limit-{error.limited}": str(error.limit),
        f"x-ratelimit-remaining-{error.limited}": str(error.remaining),
        f"x-ratelimit-reset-{error.limited}": f"{error.retry_after_seconds}s",
    }


def status_of(error: LongbatchError) -> int:
    """Return the HTTP status of the error."""
    return next((code for kind, code in _STATUSES.items() if isinstance(error, kind)), 500)


def internal_response() -> JSONResponse:
    """Return a 500 that reveals nothing; the log has the cause under the request's id."""
    message = "The server failed to process this request; its log has the cause under the x-request-id."
    return JSONResponse(envelope(500, "internal_error", message), 500)


def envelope(
    status: int,
    code: str,
    message: str,
    *,
    param: str | None = None,
    kind: str | None = None,
    **facts: object,
) -> dict[str, object]:
    """Return the body of an error response, with further facts of it."""
    if kind is None:
        kind = "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": code, **facts}}


def _framework_response(request: Request, error: HTTPException) -> JSONResponse:
    """Render the router's 404 and 405 and the framework's few other errors."""
    path = request.url.path[:_MAX_PATH_CHARS]
    match error.status_code:
        case HTTPStatus.NOT_FOUND:
            body = envelope(404, "unknown_route", f"There is no route {path!r}; see /docs.")
        case HTTPStatus.METHOD_NOT_ALLOWED:
            body = envelope(405, "method_not_allowed", f"{path!r} does not support {request.method}.")
        case status:
            body = envelope(status, "http_error", HTTPStatus(status).phrase)
    return JSONResponse(body, error.status_code, _NO_RETRY | dict(error.headers or {}))
