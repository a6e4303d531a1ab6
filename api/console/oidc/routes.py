"""The pages of signing in by the provider: where it begins, and where the provider leads the browser back."""

from functools import partial
from typing import Final

from fastapi import APIRouter, Request
from sqlalchemy.orm import Session
from starlette.responses import RedirectResponse, Response

from api.console.error_pages import page_router
from api.console.oidc import pending
from api.console.oidc.pending import PendingSignIn
from api.console.oidc.provider import Provider, ProviderError, RefusedSignInError
from api.console.oidc.rules import admitting, person_of
from api.console.page import own_address, render
from api.console.session import set_cookie
from api.console.sign_in import address_id, count_failure, failures_of, show_form
from api.http.actors import person_actor, unknown_actor
from api.http.dependencies import ServicesDep
from api.runtime.database import request_actor
from api.runtime.rate_limits import RateLimit
from api.runtime.services import Services
from jobs import tenants
from jobs.errors import AuthenticationError, ForbiddenError, NotFoundError, RequestRateError
from jobs.settings import OidcSettings
from jobs.settings.sign_in import CALLBACK
from jobs.tenants import sign_ins

_MAX_CODE: Final = 4096
_MAX_STATE: Final = 200
_SEE_OTHER: Final = 303
# Of one address, such as a proxy's, in a minute: many may come before the first of them has failed.
_MAX_ANSWERS: Final = 300


class NotBegunHereError(AuthenticationError):
    """The sign-in did not begin in this browser, or took longer than ten minutes; begin again."""

    code = "sign_in_not_begun_here"


class NotAdmittedError(ForbiddenError):
    """The provider knows you, but no rule of this server admits you; ask who operates it."""

    code = "not_admitted"


def oidc_router(settings: OidcSettings) -> APIRouter:
    """Make the routes for the configured provider.

    Raises:
        ValueError: the client's secret cannot be read.
    """
    provider = Provider(settings)
    router = page_router()

    @router.get("/oidc/start")
    async def start(request: Request, next: str = "") -> Response:  # noqa: A002  # in links
        """Lead the browser to the provider."""
        begun = PendingSignIn(next=own_address(next))
        try:
            address = await provider.address(begun)
        except ProviderError as error:
            return show_form(request, next_=begun.next, error=error)
        response = RedirectResponse(address, _SEE_OTHER)
        pending.keep(request, response, begun)
        return response

    @router.get(CALLBACK.removeprefix(router.prefix))
    async def finish(
        request: Request,
        services: ServicesDep,
        state: str = "",
        code: str = "",
        iss: str | None = None,
    ) -> Response:
        """Sign in the one whom the provider vouches for."""
        request_actor.set(unknown_actor(request.scope))
        begun = pending.find(request)
        try:
            token = await _signed_in(request, services, provider, begun, state=state, code=code, issuer=iss)
        except ProviderError as error:
            response: Response = show_form(request, next_=begun.next if begun else "", error=error)
        except RequestRateError as error:
            response = show_form(request, next_=begun.next if begun else "", error=error)
        except (AuthenticationError, ForbiddenError) as error:
            shown = await count_failure(request, services, error, reason=type(error).code)
            response = show_form(request, next_=begun.next if begun else "", error=shown)
        else:
            # The browser came from the provider's site, and would send the session's cookie with nothing that
            # follows by a redirect. So it gets a page, which leads on.
            response = render(
                request,
                "signed_in.html",
                title="You are signed in",
                address=own_address(begun.next if begun else ""),
            )
            seconds = settings.session_lifetime.total_seconds()
            set_cookie(request, response, token, seconds=seconds)
        pending.forget(request, response)
        return response

    return router


async def _signed_in(
    request: Request,
    services: Services,
    provider: Provider,
    begun: PendingSignIn | None,
    *,
    state: str,
    code: str,
    issuer: str | None,
) -> str:
    """Start the session of the one whom the provider's answer names, and return its token.

    Raises:
        NotBegunHereError: the answer belongs to no sign-in of this browser.
        RefusedSignInError: the provider does not confirm it.
        NotAdmittedError: no rule admits them.
        ProviderError: the provider does not answer as it should.
        RequestRateError: too many sign-ins of this address failed, or came; the provider was not asked.
    """
    if begun is None or len(state) > _MAX_STATE or not begun.is_answered_by(state):
        raise NotBegunHereError
    if not 0 < len(code) <= _MAX_CODE:
        raise RefusedSignInError
    await services.rates.check(failures_of(request))
    await services.rates.hit(RateLimit(address_id(request, "provider's answer"), _MAX_ANSWERS))
    claims = await provider.claims(code, begun, issuer=issuer)
    settings = services.settings.oidc
    rule = admitting(claims, settings.rules)
    if rule is None:
        raise NotAdmittedError
    person = person_of(claims, rule, settings.rules)
    try:
        tenant = await services.transactions.run_across(partial(tenants.named, name=rule.tenant))
    except NotFoundError as error:
        raise NotAdmittedError from error
    if tenant.deleted_at is not None:
        raise NotAdmittedError
    request_actor.set(person_actor(request.scope, person, tenant_id=tenant.id))

    def start(session: Session) -> str:
        lifetime = settings.session_lifetime
        return sign_ins.start_for_person(session, person, tenant_id=tenant.id, lifetime=lifetime)

    return await services.transactions.run(start, tenant_ids=[tenant.id])
