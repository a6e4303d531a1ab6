"""Signing in with an API key or a link that works once, and signing out."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final
from uuid import NAMESPACE_URL, UUID, uuid5

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from api.console import forms, session
from api.console.error_pages import SIGN_IN, error_page, page_router
from api.console.forms import FormDep
from api.console.page import HOME, own_address, redirect, render
from api.console.session import ViewerDep
from api.http.actors import unknown_actor
from api.http.dependencies import CallerDep, ServicesDep
from api.http.errors import status_of
from api.http.scopes import CONSOLE, CONSOLE_CODES
from api.runtime.database import request_actor
from api.runtime.rate_limits import RateLimit
from api.runtime.services import Services
from jobs.audit import ActorKind
from jobs.errors import AuthenticationError, ForbiddenError, LongbatchError, RequestRateError
from jobs.tenants import keys, sign_ins
from jobs.tenants.keys import Scope
from jobs.views import rfc3339

router = page_router()
codes = APIRouter(include_in_schema=False)  # for programs, which read errors as JSON

# Wrong keys and codes of one address in a minute. A right one is never refused for them.
_MAX_FAILURES: Final = 30
# Of all addresses in a minute that the audit log has.
_MAX_LOGGED: Final = 300
_ALL_FAILURES: Final = uuid5(NAMESPACE_URL, "console sign-ins that failed")


class SignInFailedError(AuthenticationError):
    """The link has been used or has expired; `longbatch console` makes another."""


class KeysRefusedError(ForbiddenError):
    """API keys do not sign in to this console; its provider does."""


@router.get("/sign-in")
async def show_sign_in(request: Request, next: str = HOME, code: str | None = None) -> Response:  # noqa: A002  # in links
    """Show the form, or for a link with a code one button: fetching a link in advance uses nothing up."""
    return show_form(request, next_=next, code=code)


@router.post("/sign-in")
async def sign_in(request: Request, services: ServicesDep) -> Response:
    """Start a session for the key or the code in the form."""
    fields = await forms.read_own(request)
    request_actor.set(unknown_actor(request.scope))
    next_ = fields.get("next", HOME)
    try:
        token = await _start(services, fields)
    except (AuthenticationError, ForbiddenError) as error:
        refusal = await count_failure(request, services, error, api_key=fields.get("api_key", "").strip())
        if isinstance(refusal, RequestRateError):
            return error_page(request, refusal)
        return show_form(request, next_=next_, error=refusal)
    response = redirect(own_address(next_))
    lifetime = services.settings.console.session_lifetime
    session.set_cookie(request, response, token, seconds=lifetime.total_seconds())
    return response


@router.post("/sign-out")
async def sign_out(services: ServicesDep, viewer: ViewerDep, _form: FormDep) -> Response:
    """End the session, in the database and in the browser."""
    await services.transactions.run(partial(sign_ins.end, token=viewer.token))
    services.event_streams.end_session(viewer.token)
    response = redirect(SIGN_IN, done="You are signed out.")
    session.delete_cookie(response)
    return response


@codes.post(CONSOLE_CODES)
async def create_code(services: ServicesDep, caller: CallerDep) -> JSONResponse:
    """Create a code that signs a browser in once, with what the request's API key may do.

    The caller knows better than this server under which name it reached it, so it completes the address.
    """
    if not services.settings.oidc.key_sign_in:
        raise KeysRefusedError
    make = partial(
        sign_ins.create_code,
        key_id=caller.key_id,
        tenant_id=caller.tenant_id,
        lifetime=services.settings.console.code_lifetime,
    )
    code = await services.transactions.run(make)
    return JSONResponse({"path": f"{SIGN_IN}?code={code.secret}", "expires_at": rfc3339(code.expires_at)})


async def _start(services: Services, fields: Mapping[str, str]) -> str:
    """Start a session and return its token.

    Raises:
        KeysRefusedError: only the provider signs in here.
        AuthenticationError: the key or the code is wrong, used, revoked or expired.
        ForbiddenError: the key may not read.
    """
    if not services.settings.oidc.key_sign_in:
        raise KeysRefusedError
    lifetime = services.settings.console.session_lifetime
    if code := fields.get("code"):
        key = await services.transactions.run_across(partial(sign_ins.key_of_code, code=code))
        if key is None:
            raise SignInFailedError
        _act_with(keys.public_id(key), key.name, tenant_id=key.tenant_id)
        use = partial(sign_ins.use_code, code=code, lifetime=lifetime)
        token = await services.transactions.run(use, tenant_ids=[key.tenant_id])
        if token is None:
            raise SignInFailedError
        return token
    caller = await services.api_keys.verify(f"Bearer {fields.get('api_key', '').strip()}")
    if Scope.READ not in caller.scopes:
        raise ForbiddenError("This API key lacks the scope 'read', which the console needs.")
    _act_with(caller.key, caller.key_name, tenant_id=caller.tenant_id)
    start = partial(sign_ins.start, key_id=caller.key_id, tenant_id=caller.tenant_id, lifetime=lifetime)
    return await services.transactions.run(start, tenant_ids=[caller.tenant_id])


def _act_with(key: str, name: str, *, tenant_id: UUID) -> None:
    """Say in the audit log whose key signs in."""
    unknown = request_actor.get()
    if unknown is not None:
        known = replace(unknown, kind=ActorKind.KEY, id=key, name=name, tenant_id=tenant_id)
        request_actor.set(known)


async def count_failure(
    request: Request,
    services: Services,
    error: LongbatchError,
    *,
    api_key: str = "",
    reason: str | None = None,
) -> LongbatchError:
    """Count a failed sign-in of this address; return the error to show, which may be that of the limit.

    Those beyond the limits are not logged: nobody fills the log from outside.
    """
    try:
        await services.rates.hit(failures_of(request))
    except RequestRateError as refusal:
        return refusal
    with suppress(RequestRateError):
        await services.rates.hit(RateLimit(_ALL_FAILURES, _MAX_LOGGED))
        await services.transactions.run_as_operator(
            partial(sign_ins.note_failure, api_key=api_key, reason=reason)
        )
    return error


def failures_of(request: Request) -> RateLimit:
    """Return the limit of failed sign-ins from the address of this request."""
    return RateLimit(address_id(request, "console sign-in"), _MAX_FAILURES)


def address_id(request: Request, what: str) -> UUID:
    """Return the id under which something is counted that comes from the address of this request."""
    host = request.client.host if request.client else ""
    return uuid5(NAMESPACE_URL, f"{what} from {host}")


def show_form(
    request: Request, *, next_: str, code: str | None = None, error: LongbatchError | None = None
) -> Response:
    """Show the ways to sign in, and why the last try failed."""
    oidc = request.app.state.services.settings.oidc
    return render(
        request,
        "sign_in.html",
        title="Sign in",
        status=status_of(error) if error else 200,
        next=own_address(next_),
        code=code if oidc.key_sign_in else None,
        takes_keys=oidc.key_sign_in,
        provider=f"{CONSOLE}/oidc/start" if oidc.is_on else None,
        message=error.message if error else None,
        address=SIGN_IN,
    )
