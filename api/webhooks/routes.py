"""Webhooks over HTTP, except endpoints: the default secret, the delivery log, replays of events."""

from datetime import timedelta
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse
from sqlalchemy.orm import Session

from api.http.callbacks import require_vault
from api.http.dependencies import ServicesDep, TenantDep
from api.http.identifiers import EventIdDep, Parse, parse_optional
from api.http.openapi import responses
from api.http.replies import page
from api.webhooks import verbs
from api.webhooks.endpoint_routes import Overlap, replay_response
from api.webhooks.schemas import (
    DEFAULT_OVERLAP_SECONDS,
    DeliveryListQuery,
    DeliveryListReply,
    ReplayReply,
    SecretReply,
)
from api.webhooks.views import delivery_object
from jobs import ids
from jobs.database import database_now
from jobs.database.paging import Range
from jobs.views import rfc3339
from jobs.webhooks import delivery_log, secrets
from jobs.webhooks.delivery_log import DeliveryFilter
from jobs.webhooks.secrets import Secrets

router = APIRouter(tags=["webhooks"])


@router.get(
    "/v1/webhook_secret",
    summary="Get the default webhook secret",
    responses=responses(200, SecretReply, "The secret", 400, 503),
)
async def get_secret(services: ServicesDep, tenant_id: TenantDep) -> JSONResponse:
    """Get the secret for deliveries to a `webhook_url` without a `webhook_secret`."""
    settings = services.settings.webhooks
    vault = require_vault(settings)

    def read(session: Session) -> Secrets:
        return secrets.of_tenant(session, tenant_id, settings, vault, now=database_now(session))

    return _secret_response(await services.transact(read))


@router.post(
    "/v1/webhook_secret/rotate",
    summary="Rotate the default webhook secret",
    responses=responses(200, SecretReply, "The new secret", 400, 503),
)
async def rotate_secret(
    services: ServicesDep, tenant_id: TenantDep, overlap_seconds: Overlap = DEFAULT_OVERLAP_SECONDS
) -> JSONResponse:
    """Replace the default secret; both sign deliveries until the old one expires."""
    settings = services.settings.webhooks
    vault = require_vault(settings)
    overlap = timedelta(seconds=overlap_seconds)

    def rotate(session: Session) -> Secrets:
        now = database_now(session)
        return secrets.rotate_tenant(session, tenant_id, settings, vault, now=now, overlap=overlap)

    return _secret_response(await services.transact(rotate))


@router.get(
    "/v1/webhook_deliveries",
    summary="List webhook deliveries",
    responses=responses(200, DeliveryListReply, "One page", 400, 503),
)
async def list_deliveries(
    services: ServicesDep, tenant_id: TenantDep, query: Annotated[DeliveryListQuery, Query()]
) -> JSONResponse:
    """List delivery attempts, newest first.

    They are kept as long as events, 30 days by default.
    """
    which = DeliveryFilter(
        endpoint_id=_parsed(query.endpoint_id, ids.parse_endpoint_id, param="endpoint_id"),
        event_id=_parsed(query.event_id, ids.parse_event_id, param="event_id"),
        is_delivered=None if query.outcome is None else query.outcome == "delivered",
    )
    after = _parsed(query.after, ids.parse_delivery_id, param="after")
    wanted = Range(tenant_id, after, query.limit)
    found = await services.transact(delivery_log.list_deliveries, which=which, wanted=wanted)
    return JSONResponse(page([delivery_object(each) for each in found.items], has_more=found.has_more))


@router.post(
    "/v1/webhook_events/{event_id}/replay",
    status_code=202,
    summary="Replay an event",
    responses=responses(202, ReplayReply, "Queued", 404, 409, 503),
)
async def replay_event(event_id: EventIdDep, services: ServicesDep, tenant_id: TenantDep) -> JSONResponse:
    """Send the event again, with the same id.

    It goes to all its previous receivers and to endpoints that want its type now.
    """
    return replay_response(await verbs.replay_event(services, event_id, tenant_id=tenant_id))


def _parsed(text: str | None, parse: Parse, *, param: str) -> UUID | None:
    return parse_optional(text, parse, param=param, message=f"`{param}` is not a valid id.")


def _secret_response(secrets: Secrets) -> JSONResponse:
    return JSONResponse(
        {
            "object": "webhook_secret",
            "secret": secrets.current,
            "old_secret_expires_at": secrets.old_expires_at and rfc3339(secrets.old_expires_at),
        },
        headers={"Cache-Control": "no-store"},
    )
