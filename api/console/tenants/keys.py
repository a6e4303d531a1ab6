"""API keys of a tenant: operators create one, whose secret one page shows once, limit and revoke one."""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from fastapi import Request
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.console.error_pages import page_router
from api.console.forms import OperationDep
from api.console.page import redirect, render
from api.console.reading import read_for
from api.console.session import OperatorDep, Viewer
from api.console.tenants.tenant import LIFETIMES, KeyRow, key_row, read_tenant, render_tenant, whole_number
from api.console.tenants.tenants import LIMITS, LIST
from api.http.body import parse
from api.http.dependencies import ServicesDep
from api.http.errors import status_of
from api.http.identifiers import KeyNameDep, TenantNameDep
from api.runtime.services import Services
from api.tenants import orders
from api.tenants.admin_schemas import KeyRequest, KeyUpdate
from jobs import tenants
from jobs.database import database_now
from jobs.errors import InvalidRequestError, NotFoundError
from jobs.tenants import key_quotas, keys, quotas
from jobs.tenants.keys import Scope
from jobs.tenants.quotas import QuotaUsage

router = page_router()


@router.post("/tenants/{tenant}/keys")
async def create_key(
    request: Request, tenant: TenantNameDep, services: ServicesDep, viewer: OperatorDep, form: OperationDep
) -> Response:
    """Create a key and show its secret, which no other page and no reload has."""
    try:
        asked = parse(KeyRequest, json.dumps(_asked(form, tenant)).encode())
    except InvalidRequestError as error:
        return await render_tenant(request, services, viewer, tenant, error=error, filled=form)
    made = await orders.create_key(services, viewer.caller, asked)
    address = f"{LIST}/{made['tenant']}"
    return render(request, "tenant_key.html", title="A new API key", key=made, address=address)


@router.get("/tenants/{tenant}/keys/{key}/limits")
async def show_limits(
    request: Request, tenant: TenantNameDep, key: KeyNameDep, services: ServicesDep, viewer: OperatorDep
) -> Response:
    """Show what the key may send, to change it."""
    return await _render_limits(request, services, viewer, tenant, key)


@router.post("/tenants/{tenant}/keys/{key}/limits")
async def set_limits(
    request: Request,
    tenant: TenantNameDep,
    key: KeyNameDep,
    services: ServicesDep,
    viewer: OperatorDep,
    form: OperationDep,
) -> Response:
    """Set the key's limits; an empty field takes one back to the tenant's."""
    name, _ = await services.transactions.run_across(partial(_find, tenant=tenant, key=key))
    filled = _filled(form)
    try:
        limits = {each: whole_number(each, given) for each, given in filled.items()}
        asked = parse(KeyUpdate, json.dumps({"limits": limits}).encode())
    except InvalidRequestError as error:
        return await _render_limits(request, services, viewer, tenant, key, error=error, filled=filled)
    await orders.update_key(services, viewer.caller, key, asked)
    return redirect(f"{LIST}/{name}", done=f"The limits of {key} are set; they hold within seconds.")


async def _render_limits(
    request: Request,
    services: Services,
    viewer: Viewer,
    tenant: str,
    key: str,
    *,
    error: InvalidRequestError | None = None,
    filled: Mapping[str, str] | None = None,
) -> Response:
    """Render the page, after a refused form with the error and what was filled in."""
    name, row = await services.transactions.run_across(partial(_find, tenant=tenant, key=key))
    details = await read_for(viewer, services, partial(read_tenant, name=name))
    effective = quotas.limits_of(services.settings.limits, details.own)
    own = {each: "" if limit is None else str(limit) for each, limit in row.limits.items()}
    return render(
        request,
        "tenant_key_limits.html",
        title="Limit a key",
        status=status_of(error) if error else 200,
        problem=error and error.message,
        tenant=name,
        key=row,
        filled=own if filled is None else filled,
        limits={each: (LIMITS[each], getattr(effective, each)) for each in row.limits},
        address=f"{LIST}/{name}",
    )


@router.get("/tenants/{tenant}/keys/{key}/revoke")
async def confirm_revoke(
    request: Request, tenant: TenantNameDep, key: KeyNameDep, services: ServicesDep, viewer: OperatorDep
) -> Response:
    """Ask before the key is revoked, which cannot be undone."""
    name, row = await services.transactions.run_across(partial(_find, tenant=tenant, key=key))
    return render(
        request,
        "tenant_key_revoke.html",
        title="Revoke a key",
        tenant=name,
        key=row,
        is_own=row.id == viewer.caller.key,
        address=f"{LIST}/{name}",
    )


@router.post("/tenants/{tenant}/keys/{key}/revoke")
async def revoke_key(
    tenant: TenantNameDep, key: KeyNameDep, services: ServicesDep, viewer: OperatorDep, _form: OperationDep
) -> Response:
    """Revoke the key; servers that used it lately accept it for some seconds."""
    name, _ = await services.transactions.run_across(partial(_find, tenant=tenant, key=key))
    await orders.revoke_key(services, viewer.caller, key)
    return redirect(f"{LIST}/{name}", done=f"The key {key} is revoked.")


def _asked(form: Mapping[str, str], tenant: str) -> dict[str, Any]:
    """Translate the form to the body of `POST /v1/keys`.

    Raises:
        InvalidRequestError: the form offers no such lifetime, no scope is chosen, or a limit is no number.
    """
    lifetime = form.get("lifetime", "")
    if lifetime not in LIFETIMES:
        raise InvalidRequestError("lifetime: Choose one of the list.", param="lifetime")
    scopes = [scope for scope in Scope if form.get(f"scope_{scope}")]
    if not scopes:
        raise InvalidRequestError("scopes: Choose at least one.", param="scopes")
    return {
        "tenant": tenant,
        "name": form.get("name", "").strip() or None,
        "scopes": scopes,
        "expires_in_seconds": int(lifetime) if lifetime else None,
        "limits": {each: whole_number(each, given) for each, given in _filled(form).items()},
    }


def _filled(form: Mapping[str, str]) -> dict[str, str]:
    """Return what the form says of each limit of a key."""
    return {each: form.get(each, "").strip() for each in keys.LIMIT_NAMES}


def _find(session: Session, *, tenant: str, key: str) -> tuple[str, KeyRow]:
    """Find a key of this tenant; return the tenant's name and the key.

    Raises:
        NotFoundError: there is no such tenant, or it has no such key.
    """
    owner = tenants.find(session, tenant)
    row = keys.named(session, key)
    if row.tenant_id != owner.id:
        raise NotFoundError("There is no such key.")
    held = key_quotas.read_usages(session, [row.id]).get(row.id, QuotaUsage())
    return owner.name, key_row(row, held, now=database_now(session))
