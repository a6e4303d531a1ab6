"""Dependencies of routes: the services, the caller and the tenant.

All are coroutines, because the framework would run each plain function in a thread.
"""

from typing import Annotated
from uuid import UUID

from fastapi import Depends, Request

from api.runtime.api_keys import Caller
from api.runtime.services import Services


def services_of(request: Request) -> Services:
    """Return the services of the running application."""
    services: Services = request.app.state.services
    return services


def caller_of(request: Request) -> Caller:
    """Return the authenticated caller; only routes that need a key have one."""
    caller: Caller = request.state.caller
    return caller


async def find_services(request: Request) -> Services:
    """Return the services of the running application."""
    return services_of(request)


async def find_caller(request: Request) -> Caller:
    """Return the authenticated caller."""
    return caller_of(request)


async def find_tenant(request: Request) -> UUID:
    """Return the tenant whose rows this request sees."""
    return caller_of(request).tenant_id


ServicesDep = Annotated[Services, Depends(find_services)]
CallerDep = Annotated[Caller, Depends(find_caller)]
TenantDep = Annotated[UUID, Depends(find_tenant)]
