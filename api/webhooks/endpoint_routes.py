"""Webhook endpoints over HTTP: create, get, list, update, delete, rotate, test, replay."""

from datetime import timedelta
from functools import partial
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse
from sqlalchemy.orm import Session

from api.http.body import parse, read_body
from api.http.dependencies import ServicesDep, TenantDep
from api.http.identifiers import EndpointIdDep, PageQuery, parse_range
from api.http.openapi import json_body, responses
from api.http.replies import page
from api.webhooks import verbs
from api.webhooks.schemas import (
    DEFAULT_OVERLAP_SECONDS,
    MAX_OVERLAP_SECONDS,
    DeletedEndpointReply,
    EndpointListReply,
    EndpointReply,
    EndpointRequest,
    EndpointSecretReply,
    EndpointUpdate,
    QueuedEventReply,
    ReplayQuery,
    ReplayReply,
)
from api.webhooks.views import endpoint_object
from jobs import ids
from jobs.doorbell import EVENTS
from jobs.models.webhook import WebhookEndpoint
from jobs.views import rfc3339
from jobs.webhooks import ENDPOINT_TEST, endpoints, replays
from jobs.webhooks.replays import Replayed

router = APIRouter(tags=["webhooks"])

_MAX_BYTES: Final = 16 * 1024
_ALL: Final = timedelta(days=3650)

Overlap = Annotated[
    int, Query(ge=0, le=MAX_OVERLAP_SECONDS, description="Seconds for which the previous secret also signs.")
]


@router.post(
    "/v1/webhook_endpoints",
    status_code=201,
    summary="Create a webhook endpoint",
    responses=responses(201, EndpointSecretReply, "The endpoint and its secret", 400, 409, 413, 503),
    openapi_extra=json_body(EndpointRequest),
)
async def create_endpoint(request: Request, services: ServicesDep, tenant_id: TenantDep) -> JSONResponse:
    """Create an endpoint for events from now on. Only this response has its secret."""
    asked = parse(EndpointRequest, await read_body(request, max_bytes=_MAX_BYTES))
    endpoint, secret = await verbs.create(services, asked, tenant_id=tenant_id)
    return JSONResponse(endpoint_object(endpoint, None) | {"secret": secret}, 201)


@router.get(
    "/v1/webhook_endpoints",
    summary="List webhook endpoints",
    responses=responses(200, EndpointListReply, "One page", 400, 503),
)
async def list_endpoints(
    services: ServicesDep, tenant_id: TenantDep, query: Annotated[PageQuery, Query()]
) -> JSONResponse:
    """List your endpoints, newest first."""
    wanted = parse_range(query, ids.ENDPOINT, tenant_id=tenant_id)

    def read(session: Session) -> dict[str, Any]:
        found = endpoints.list_endpoints(session, wanted)
        breakers = endpoints.breakers(session, found.items)
        data = [endpoint_object(each, breakers.get(each.id)) for each in found.items]
        return page(data, has_more=found.has_more)

    return JSONResponse(await services.transact(read))


@router.get(
    "/v1/webhook_endpoints/{endpoint_id}",
    summary="Get a webhook endpoint",
    responses=responses(200, EndpointReply, "The endpoint", 404, 503),
)
async def get_endpoint(
    endpoint_id: EndpointIdDep, services: ServicesDep, tenant_id: TenantDep
) -> JSONResponse:
    """Get the endpoint and its delivery health."""

    def read(session: Session) -> dict[str, Any]:
        return _shown(session, endpoints.get(session, endpoint_id, tenant_id=tenant_id))

    return JSONResponse(await services.transact(read))


@router.patch(
    "/v1/webhook_endpoints/{endpoint_id}",
    summary="Update a webhook endpoint",
    responses=responses(200, EndpointReply, "The endpoint", 400, 404, 413, 503),
    openapi_extra=json_body(EndpointUpdate),
)
async def update_endpoint(
    request: Request, endpoint_id: EndpointIdDep, services: ServicesDep, tenant_id: TenantDep
) -> JSONResponse:
    """Update the fields given.

    `enabled: true` also ends a pause and re-enables a disabled endpoint.
    """
    find = partial(endpoints.get, endpoint_id=endpoint_id, tenant_id=tenant_id)
    raw = await read_body(request, max_bytes=_MAX_BYTES)
    await services.transact(find)  # an absent endpoint is 404, whatever the body is
    asked = parse(EndpointUpdate, raw)
    found = await verbs.change(services, endpoint_id, asked, tenant_id=tenant_id)
    return JSONResponse(endpoint_object(*found))


@router.delete(
    "/v1/webhook_endpoints/{endpoint_id}",
    summary="Delete a webhook endpoint",
    responses=responses(200, DeletedEndpointReply, "The endpoint was deleted", 404, 503),
)
async def delete_endpoint(
    endpoint_id: EndpointIdDep, services: ServicesDep, tenant_id: TenantDep
) -> JSONResponse:
    """Delete the endpoint and its pending deliveries."""
    await services.transact(endpoints.remove, endpoint_id=endpoint_id, tenant_id=tenant_id)
    return JSONResponse({"id": ids.endpoint_id(endpoint_id), "object": "webhook_endpoint", "deleted": True})


@router.post(
    "/v1/webhook_endpoints/{endpoint_id}/rotate",
    summary="Rotate a webhook endpoint's secret",
    responses=responses(200, EndpointSecretReply, "The endpoint and its new secret", 400, 404, 503),
)
async def rotate_endpoint(
    endpoint_id: EndpointIdDep,
    services: ServicesDep,
    tenant_id: TenantDep,
    overlap_seconds: Overlap = DEFAULT_OVERLAP_SECONDS,
) -> JSONResponse:
    """Replace the endpoint's secret; both sign deliveries until the old one expires."""
    overlap = timedelta(seconds=overlap_seconds)
    endpoint, breaker, secret = await verbs.rotate(
        services, endpoint_id, tenant_id=tenant_id, overlap=overlap
    )
    return JSONResponse(endpoint_object(endpoint, breaker) | {"secret": secret})


@router.post(
    "/v1/webhook_endpoints/{endpoint_id}/test",
    status_code=202,
    summary="Send a test event",
    responses=responses(202, QueuedEventReply, "Queued; the delivery log shows the outcome", 404, 409, 503),
)
async def send_test(endpoint_id: EndpointIdDep, services: ServicesDep, tenant_id: TenantDep) -> JSONResponse:
    """Send a `webhook_endpoint.test` event to this endpoint, whatever its filter."""
    event_id = await verbs.send_test(services, endpoint_id, tenant_id=tenant_id)
    return JSONResponse({"id": ids.event_id(event_id), "object": "event", "type": ENDPOINT_TEST}, 202)


@router.post(
    "/v1/webhook_endpoints/{endpoint_id}/replay",
    status_code=202,
    summary="Replay events to an endpoint",
    responses=responses(202, ReplayReply, "Queued", 400, 404, 409, 503),
)
async def replay_since(
    endpoint_id: EndpointIdDep,
    services: ServicesDep,
    tenant_id: TenantDep,
    query: Annotated[ReplayQuery, Query()],
) -> JSONResponse:
    """Send all events since then that pass the endpoint's filter.

    Events keep their ids, and those delivered before are sent again.
    """

    def replay(session: Session) -> Replayed:
        endpoint = endpoints.get(session, endpoint_id, tenant_id=tenant_id)
        since = query.since or endpoint.created_at - _ALL
        return replays.replay_since(session, endpoint, since=since)

    replayed = await services.transact(replay)
    services.doorbell.ring(EVENTS)
    return replay_response(replayed)


def replay_response(replayed: Replayed) -> JSONResponse:
    """Render what a replay queued."""
    return JSONResponse(
        {
            "object": "webhook_replay",
            "num_deliveries": replayed.num_deliveries,
            "next_since": replayed.next_since and rfc3339(replayed.next_since),
            "num_over_limit": replayed.num_over_limit,
        },
        202,
    )


def _shown(session: Session, endpoint: WebhookEndpoint) -> dict[str, Any]:
    return endpoint_object(endpoint, endpoints.breakers(session, [endpoint]).get(endpoint.id))
