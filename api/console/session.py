"""Who is signed in: the session in a browser's cookie, checked against its key on every request."""

import hmac
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from typing import Annotated, Final

from fastapi import Depends, Request
from starlette.responses import Response

from api.console.oidc.rules import still_admitting
from api.http.actors import actor_with
from api.http.scopes import CONSOLE
from api.runtime.api_keys import Caller, caller_of, caller_of_person
from api.runtime.database import request_actor, request_tenant
from api.runtime.services import Services
from jobs.audit import Via
from jobs.errors import AuthenticationError, ForbiddenError
from jobs.loopback import is_loopback
from jobs.models import ApiKey
from jobs.tenants import quotas, sign_ins
from jobs.tenants.keys import Scope
from jobs.tenants.persons import Person
from jobs.tenants.sign_ins import SignIn

COOKIE: Final = "longbatch_session"


class SignInNeededError(AuthenticationError):
    """Sign in first: there is no session, or it has ended."""


@dataclass(frozen=True, slots=True)
class Viewer:
    """The person who looks at a page.

    Attributes:
        caller: the key that they signed in with, as it is now, or the person.
        tenant_name: of its tenant.
        token: of the session.
    """

    caller: Caller
    tenant_name: str
    token: str = field(repr=False)

    @property
    def key_name(self) -> str:
        """The operator's name for the key, or the person's, otherwise its public part."""
        return self.caller.key_name or self.caller.key

    @property
    def may_change(self) -> bool:
        """Whether they may change what belongs to their tenant."""
        return Scope.SUBMIT in self.caller.scopes

    @property
    def is_operator(self) -> bool:
        """Whether they see the rows of all tenants."""
        return Scope.OPERATOR in self.caller.scopes

    @property
    def csrf_token(self) -> str:
        """What a form of this session must contain; other sites cannot know it."""
        return hmac.digest(self.token.encode(), b"console form", sha256).hex()


async def find_viewer(request: Request) -> Viewer:
    """Find the session of the request, bind the request to its tenant, and count it.

    A coroutine, so that the binding holds for the route too.

    Raises:
        SignInNeededError: there is no session, or it or its key is no longer valid.
        RequestRateError: the key or its tenant has sent too many requests.
        OpenRequestLimitError: its tenant has too many requests in progress.
        UnavailableError: the database does not answer.
    """
    services: Services = request.app.state.services
    token = request.cookies.get(COOKIE, "")
    found = await _find(services, token)
    request.state.recheck = partial(_find, services, token)
    caller = _caller(services, found)
    request_tenant.set(caller.tenant_id)
    request_actor.set(actor_with(request.scope, caller, Via.CONSOLE))
    await services.rates.hit_each(caller.rate_limits)
    services.open_requests.enter(request.scope["state"], caller.tenant_id)
    if not found.is_use_noted:
        await services.transactions.run(partial(sign_ins.note_use, token=token, now=found.now))
    viewer = Viewer(caller, found.tenant_name, token)
    request.state.viewer = viewer
    return viewer


async def _find(services: Services, token: str) -> SignIn:
    """Find the valid session with this token; raise as `find_viewer` does."""
    idle = services.settings.console.idle_lifetime
    find = partial(sign_ins.find, token=token, idle=idle)
    found = await services.transactions.run_across(find) if token else None
    if found is None or not _is_open_to(services, found.who):
        raise SignInNeededError
    if isinstance(found.who, Person):
        rule = still_admitting(found.who, services.settings.oidc.rules)
        if rule is None or rule.tenant != found.tenant_name:
            raise SignInNeededError
        found = replace(found, who=replace(found.who, scopes=frozenset(rule.scopes)))
    if Scope.READ not in found.who.scopes:
        raise SignInNeededError
    return found


def _is_open_to(services: Services, who: ApiKey | Person) -> bool:
    """Return True if the settings, as they are now, let such a one sign in."""
    oidc = services.settings.oidc
    return who.issuer == oidc.issuer if isinstance(who, Person) else oidc.key_sign_in


def _caller(services: Services, found: SignIn) -> Caller:
    limits = quotas.limits_of(services.settings.limits, found.own_limits)
    if isinstance(found.who, Person):
        return caller_of_person(found.who, found.tenant_id, limits)
    return caller_of(found.who, limits)


ViewerDep = Annotated[Viewer, Depends(find_viewer)]


async def find_operator(viewer: ViewerDep) -> Viewer:
    """Find the session of the request, for pages and forms of operators alone.

    Raises:
        ForbiddenError: the key is no operator's.
    """
    if not viewer.is_operator:
        raise ForbiddenError("This needs a key with the scope 'operator'.")
    return viewer


OperatorDep = Annotated[Viewer, Depends(find_operator)]


def set_cookie(request: Request, response: Response, token: str, *, seconds: float) -> None:
    """Give the browser its session; on any host but a loopback one it returns it over HTTPS alone."""
    response.set_cookie(
        COOKIE,
        token,
        max_age=int(seconds),
        path=CONSOLE,
        httponly=True,
        samesite="strict",
        secure=not is_loopback(request.url.hostname),
    )


def delete_cookie(response: Response) -> None:
    """Make the browser forget its session."""
    response.delete_cookie(COOKIE, path=CONSOLE, httponly=True, samesite="strict")
