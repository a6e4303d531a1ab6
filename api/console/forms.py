"""Forms that change something: from our own pages, of this session, with a key that may."""

import hmac
from collections.abc import Mapping
from typing import Annotated, Final
from urllib.parse import parse_qsl, urlsplit

from fastapi import Depends, Request

from api.console.session import OperatorDep, Viewer, ViewerDep
from api.http.body import read_body
from jobs.errors import ForbiddenError, InvalidRequestError

# 20,000 characters of questions or of a schema, each of nine bytes at most, and the rest.
_MAX_BYTES: Final = 256 * 1024
_MAX_FIELDS: Final = 200
CSRF_FIELD: Final = "csrf"
_FORM: Final = "application/x-www-form-urlencoded"


class ForeignFormError(ForbiddenError):
    """No page of this console sent the form; open its page again and repeat."""


async def read_own(request: Request) -> Mapping[str, str]:
    """Read a form that a page of this origin sent.

    Raises:
        ForeignFormError: another site sent it.
        InvalidRequestError: it is no form.
        TooLargeError: it is too large.
    """
    check_origin(request)
    if request.headers.get("content-type", "").partition(";")[0].strip() != _FORM:
        raise InvalidRequestError(f"A form of the console is sent as {_FORM}.")
    raw = await read_body(request, max_bytes=_MAX_BYTES)
    try:
        pairs = parse_qsl(raw.decode(), keep_blank_values=True, max_num_fields=_MAX_FIELDS)
    except ValueError:  # not UTF-8, or too many fields
        raise InvalidRequestError("The form is malformed.") from None
    return {name: value.replace("\0", "\ufffd") for name, value in pairs}


def check_origin(request: Request) -> None:
    """Refuse what a page of another origin sent.

    Browsers say where a request comes from in a header that pages cannot set. Those that do not, and those
    that reach this server over plain HTTP, send the origin; `no-referrer` makes some send `null`.

    Raises:
        ForeignFormError: it comes from elsewhere, or the browser does not tell.
    """
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        is_own = site == "same-origin"
    else:
        origin = urlsplit(request.headers.get("origin", ""))
        is_own = bool(origin.netloc) and origin.netloc == request.headers.get("host")
    if not is_own:
        raise ForeignFormError


def check_token(viewer: Viewer, fields: Mapping[str, str]) -> None:
    """Refuse the fields of a form that no page of this session made.

    Raises:
        ForeignFormError: another session's page made it.
    """
    if not hmac.compare_digest(fields.get(CSRF_FIELD, "").encode(), viewer.csrf_token.encode()):
        raise ForeignFormError


async def read_form(request: Request, viewer: ViewerDep) -> Mapping[str, str]:
    """Read a form of this session.

    Raises:
        ForeignFormError: another site sent it, or another session's page.
    """
    fields = await read_own(request)
    check_token(viewer, fields)
    return fields


async def read_change(request: Request, viewer: ViewerDep) -> Mapping[str, str]:
    """Read a form that changes what belongs to the tenant.

    Raises:
        ForbiddenError: the key may only read.
        ForeignFormError: as `read_form`.
    """
    check_may_change(viewer)
    return await read_form(request, viewer)


def check_may_change(viewer: Viewer) -> None:
    """Refuse who may only read.

    Raises:
        ForbiddenError: the key lacks the scope.
    """
    if not viewer.may_change:
        raise ForbiddenError("You signed in with a key that may only read; this needs the scope 'submit'.")


async def read_operation(request: Request, viewer: OperatorDep) -> Mapping[str, str]:
    """Read a form by which an operator changes what belongs to any tenant, or to none.

    Raises:
        ForbiddenError: the key is no operator's.
        ForeignFormError: as `read_form`.
    """
    return await read_form(request, viewer)


FormDep = Annotated[Mapping[str, str], Depends(read_form)]
ChangeDep = Annotated[Mapping[str, str], Depends(read_change)]
OperationDep = Annotated[Mapping[str, str], Depends(read_operation)]
