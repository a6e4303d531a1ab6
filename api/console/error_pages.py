"""Errors below /console as pages: the same status and words as the API's, and a way on."""

from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import Scope

from api.console.page import HOME, render
from api.console.session import SignInNeededError
from api.http.errors import status_of
from api.http.scopes import CONSOLE
from jobs.errors import LimitError, LongbatchError
from jobs.sealing.content import ContentUnreadableError
from jobs.validation import from_validation

SIGN_IN: Final = f"{CONSOLE}/sign-in"
_INTERNAL: Final = "The server failed to process this request; its log has the cause under the x-request-id."
_SEE_OTHER: Final = 303


class PageRoute(APIRoute):
    """A route of the console: its errors are pages, and without a session it leads to the form."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler that answers errors as pages."""
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handle(request)
            except SignInNeededError as error:
                return _to_form(request, error)
            except LongbatchError as error:
                return error_page(request, error)
            except RequestValidationError as error:
                return error_page(request, from_validation(error.errors(), outer=1))

        return answer


def page_router() -> APIRouter:
    """Make the router of a family of pages."""
    return APIRouter(prefix=CONSOLE, include_in_schema=False, route_class=PageRoute)


def error_page(request: Request, error: LongbatchError) -> HTMLResponse:
    """Render the error; internal ones reveal nothing about the server."""
    status = status_of(error)
    is_told = status != HTTPStatus.INTERNAL_SERVER_ERROR or isinstance(error, ContentUnreadableError)
    message = error.message if is_told else _INTERNAL
    response = _page(request, status, message)
    if isinstance(error, LimitError):
        response.headers["Retry-After"] = str(error.retry_after_seconds)
    return response


def failure_page(scope: Scope) -> Response:
    """Make the page of a request that failed, and that nothing else answered."""
    return _page(Request(scope), HTTPStatus.INTERNAL_SERVER_ERROR, _INTERNAL)


def _page(request: Request, status: int, message: str) -> HTMLResponse:
    phrase = HTTPStatus(status).phrase
    return render(request, "error.html", title=phrase, status=status, code=status, message=message)


def _to_form(request: Request, error: SignInNeededError) -> Response:
    """Lead a browser to the form and back to its page; a script reloads its page, which leads there."""
    if request.headers.get("hx-request"):
        response = _page(request, status_of(error), error.message)
        response.headers["HX-Refresh"] = "true"
        return response
    path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    wanted = path if request.method == "GET" else HOME
    return RedirectResponse(f"{SIGN_IN}?next={quote(wanted, safe='')}", _SEE_OTHER)
