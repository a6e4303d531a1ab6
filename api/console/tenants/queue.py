"""Orders about a tenant's queue: operators pause, drain and resume any, others their own."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated

from fastapi import Depends, Request
from pydantic import ValidationError
from starlette.responses import Response

from api.console.error_pages import page_router
from api.console.forms import read_change, read_operation
from api.console.page import redirect
from api.console.reading import read_for
from api.console.session import Viewer, ViewerDep
from api.console.tenants.tenant import render_tenant
from api.console.tenants.tenants import LIST
from api.http.dependencies import ServicesDep
from api.http.halts import HaltRequest
from api.http.identifiers import TenantNameDep
from api.runtime.services import Services
from api.tenants import queue_orders
from api.tenants.queue_orders import FindTenant, own_of
from jobs import tenants
from jobs.errors import InvalidRequestError
from jobs.states.halt import HaltKind
from jobs.validation import from_validation

router = page_router()


async def read_order(request: Request, viewer: ViewerDep) -> Mapping[str, str]:
    """Read a form about a queue: an operator's, or of a key that may change what is its tenant's.

    Raises:
        ForbiddenError: the key is neither.
        ForeignFormError: as `read_form`.
    """
    if viewer.is_operator:
        return await read_operation(request, viewer)
    return await read_change(request, viewer)


OrderDep = Annotated[Mapping[str, str], Depends(read_order)]


@router.post("/tenants/{tenant}/queue/resume")
async def resume_queue(
    tenant: TenantNameDep, services: ServicesDep, viewer: ViewerDep, _form: OrderDep
) -> Response:
    """Let the tenant's jobs start again."""
    name, which = await _find(services, viewer, tenant)
    await queue_orders.order_resumption(services, viewer.caller, which)
    return redirect(f"{LIST}/{name}", done="Jobs start again.")


@router.post("/tenants/{tenant}/queue/{kind}")
async def halt_queue(
    request: Request,
    tenant: TenantNameDep,
    kind: HaltKind,
    services: ServicesDep,
    viewer: ViewerDep,
    form: OrderDep,
) -> Response:
    """Start none of the tenant's jobs until the queue is resumed; the reason is read by its users."""
    name, which = await _find(services, viewer, tenant)
    reason = form.get("reason", "").strip()
    try:
        asked = HaltRequest(reason=reason)
    except ValidationError as error:
        refusal: InvalidRequestError = from_validation(error)
        return await render_tenant(
            request, services, viewer, tenant, error=refusal, filled={"reason": reason}
        )
    await queue_orders.order_halt(services, viewer.caller, which, kind, reason=asked.reason)
    return redirect(f"{LIST}/{name}", done="No more jobs start; those that run go on.")


async def _find(services: Services, viewer: Viewer, name: str) -> tuple[str, FindTenant]:
    """Find the tenant as far as the viewer sees it; return its name, and how an order finds it.

    Raises:
        NotFoundError: there is no such tenant, or it is another one.
    """
    found = await read_for(viewer, services, partial(tenants.find, text=name))
    if viewer.is_operator:
        return found.name, partial(tenants.find, text=found.name)
    return found.name, own_of(viewer.caller)
