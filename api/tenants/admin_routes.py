"""Tenants over HTTP, for operators: create, list, get, update, delete."""

from functools import partial
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse
from sqlalchemy.orm import Session

from api.http.body import parse, read_body
from api.http.dependencies import CallerDep, ServicesDep
from api.http.identifiers import TenantNameDep, parse_optional
from api.http.openapi import json_body, responses
from api.http.replies import page
from api.tenants import orders
from api.tenants.admin_schemas import (
    AdminListQuery,
    TenantListReply,
    TenantReply,
    TenantRequest,
    TenantUpdate,
)
from api.tenants.views import tenant_objects
from jobs import ids, tenants

router = APIRouter(tags=["tenants"])

_MAX_BYTES: Final = 16 * 1024


@router.post(
    "/v1/tenants",
    status_code=201,
    summary="Create a tenant",
    responses=responses(201, TenantReply, "The tenant", 400, 409, 413, 503),
    openapi_extra=json_body(TenantRequest),
)
async def create_tenant(request: Request, services: ServicesDep, caller: CallerDep) -> JSONResponse:
    """Create a tenant without keys. Needs the scope `operator`, as all of these."""
    asked = parse(TenantRequest, await read_body(request, max_bytes=_MAX_BYTES))
    return JSONResponse(await orders.create_tenant(services, caller, asked), 201)


@router.get(
    "/v1/tenants", summary="List tenants", responses=responses(200, TenantListReply, "One page", 400, 503)
)
async def list_tenants(services: ServicesDep, query: Annotated[AdminListQuery, Query()]) -> JSONResponse:
    """List tenants with their limits and whether their jobs start, newest first."""
    message = "There is no tenant with the id in `after`."
    after = parse_optional(query.after or None, ids.parse_tenant_id, param="after", message=message)

    def read(session: Session) -> dict[str, Any]:
        found = tenants.read_page(session, after=after, limit=query.limit)
        data = tenant_objects(session, found.items, services.settings.limits)
        return page(data, has_more=found.has_more)

    return JSONResponse(await services.transactions.run_across(read))


@router.get(
    "/v1/tenants/{tenant}",
    summary="Get a tenant",
    responses=responses(200, TenantReply, "The tenant", 404, 503),
)
async def get_tenant(tenant: TenantNameDep, services: ServicesDep) -> JSONResponse:
    """Get a tenant with its limits and whether its jobs start."""

    def read(session: Session) -> dict[str, Any]:
        return orders.tenant_object(session, tenants.find(session, tenant), settings=services.settings.limits)

    return JSONResponse(await services.transactions.run_across(read))


@router.patch(
    "/v1/tenants/{tenant}",
    summary="Update a tenant",
    responses=responses(200, TenantReply, "The tenant", 400, 404, 413, 503),
    openapi_extra=json_body(TenantUpdate),
)
async def update_tenant(
    request: Request, tenant: TenantNameDep, services: ServicesDep, caller: CallerDep
) -> JSONResponse:
    """Update weight and limits, which hold within seconds."""
    raw = await read_body(request, max_bytes=_MAX_BYTES)
    # An absent tenant is 404, whatever the body is.
    await services.transactions.run_across(partial(tenants.find, text=tenant))
    asked = parse(TenantUpdate, raw)
    return JSONResponse(await orders.update_tenant(services, caller, tenant, asked))


@router.delete(
    "/v1/tenants/{tenant}",
    status_code=202,
    summary="Delete a tenant with everything",
    responses=responses(202, TenantReply, "The tenant, which is being deleted", 404, 409, 503),
)
async def delete_tenant(tenant: TenantNameDep, services: ServicesDep, caller: CallerDep) -> JSONResponse:
    """Delete a tenant with all that it has; there is no way back.

    Its keys cease to work within seconds, running jobs are stopped, and service workers remove jobs, results,
    files, documents and the rest in parts. `deletion` tells how far they are; at last the tenant is 404. A
    repeated request changes nothing. The tenant of the caller's own key is 409, and so is `default`.
    """
    return JSONResponse(await orders.delete_tenant(services, caller, tenant), 202)
