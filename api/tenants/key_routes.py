"""API keys over HTTP, for operators: create, list, get, limit, rotate, revoke."""

from datetime import timedelta
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse
from sqlalchemy.orm import Session

from api.http.body import parse, read_body
from api.http.dependencies import CallerDep, ServicesDep
from api.http.identifiers import KeyNameDep
from api.http.openapi import json_body, responses
from api.http.replies import page
from api.tenants import orders
from api.tenants.admin_schemas import (
    KeyListQuery,
    KeyListReply,
    KeyReply,
    KeyRequest,
    KeySecretReply,
    KeyUpdate,
    RotateQuery,
)
from api.tenants.views import key_objects
from jobs import tenants
from jobs.database import database_now
from jobs.tenants import keys

router = APIRouter(tags=["tenants"])

_MAX_BYTES: Final = 16 * 1024
_NOT_KEPT: Final = {"Cache-Control": "no-store"}


@router.post(
    "/v1/keys",
    status_code=201,
    summary="Create an API key",
    responses=responses(201, KeySecretReply, "The key and its secret", 400, 404, 409, 413, 503),
    openapi_extra=json_body(KeyRequest),
)
async def create_key(request: Request, services: ServicesDep, caller: CallerDep) -> JSONResponse:
    """Create a key. Only this response has its secret. Needs the scope `operator`, as all of these."""
    asked = parse(KeyRequest, await read_body(request, max_bytes=_MAX_BYTES))
    return JSONResponse(await orders.create_key(services, caller, asked), 201, _NOT_KEPT)


@router.get(
    "/v1/keys",
    summary="List API keys",
    responses=responses(200, KeyListReply, "One page", 400, 404, 503),
)
async def list_keys(services: ServicesDep, query: Annotated[KeyListQuery, Query()]) -> JSONResponse:
    """List keys of all tenants, or of one, without their secrets, newest first."""

    def read(session: Session) -> dict[str, Any]:
        tenant_id = tenants.find(session, query.tenant).id if query.tenant else None
        found = keys.read_page(session, tenant_id=tenant_id, after=query.after or None, limit=query.limit)
        data = key_objects(session, found.items, now=database_now(session))
        return page(data, has_more=found.has_more)

    return JSONResponse(await services.transactions.run_across(read))


@router.get(
    "/v1/keys/{key}",
    summary="Get an API key",
    responses=responses(200, KeyReply, "The key", 404, 503),
)
async def get_key(key: KeyNameDep, services: ServicesDep) -> JSONResponse:
    """Get a key without its secret."""

    def read(session: Session) -> dict[str, Any]:
        return orders.key_object(session, keys.named(session, key))

    return JSONResponse(await services.transactions.run_across(read))


@router.patch(
    "/v1/keys/{key}",
    summary="Update an API key's limits",
    responses=responses(200, KeyReply, "The key", 400, 404, 413, 503),
    openapi_extra=json_body(KeyUpdate),
)
async def update_key(
    request: Request, key: KeyNameDep, services: ServicesDep, caller: CallerDep
) -> JSONResponse:
    """Set limits of this key alone, which hold within seconds; those of its tenant hold besides."""
    asked = parse(KeyUpdate, await read_body(request, max_bytes=_MAX_BYTES))
    return JSONResponse(await orders.update_key(services, caller, key, asked))


@router.post(
    "/v1/keys/{key}/rotate",
    status_code=201,
    summary="Rotate an API key",
    responses=responses(201, KeySecretReply, "The new key and its secret", 400, 404, 409, 503),
)
async def rotate_key(
    key: KeyNameDep, services: ServicesDep, caller: CallerDep, query: Annotated[RotateQuery, Query()]
) -> JSONResponse:
    """Create a key like this one; this one expires after the overlap."""
    overlap = timedelta(seconds=query.overlap_seconds)
    found = await orders.rotate_key(services, caller, key, overlap=overlap)
    return JSONResponse(found, 201, _NOT_KEPT)


@router.post(
    "/v1/keys/{key}/revoke",
    summary="Revoke an API key",
    responses=responses(200, KeyReply, "The key", 404, 409, 503),
)
async def revoke_key(key: KeyNameDep, services: ServicesDep, caller: CallerDep) -> JSONResponse:
    """Revoke a key, which is refused from then on; servers that cached it accept it for seconds.

    The key of this request cannot revoke itself: one that may operate is always left.
    """
    return JSONResponse(await orders.revoke_key(services, caller, key))
