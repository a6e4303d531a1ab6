"""What callers and people do with webhooks: make and change endpoints, send tests, replay events."""

from datetime import timedelta
from functools import partial
from uuid import UUID

from sqlalchemy.orm import Session

from api.http.callbacks import checked_secret, require_vault
from api.runtime.services import Services
from api.webhooks.schemas import EndpointRequest, EndpointUpdate
from jobs import webhooks
from jobs.doorbell import EVENTS
from jobs.models.webhook import WebhookEndpoint
from jobs.models.webhook_delivery import WebhookBreaker
from jobs.webhooks import endpoints, replays
from jobs.webhooks.endpoints import EndpointSpec
from jobs.webhooks.replays import Replayed


async def create(
    services: Services, asked: EndpointRequest, *, tenant_id: UUID
) -> tuple[WebhookEndpoint, str]:
    """Create an endpoint for events from now on; return it with its secret.

    Raises:
        ConflictError: the tenant has the maximum number of endpoints.
        InvalidRequestError: nothing is sent to this URL, the secret is none, or there is no key to seal it.
    """
    settings = services.settings.webhooks
    vault = require_vault(settings)
    await _check(services, asked.url)
    return await services.transact(
        endpoints.create,
        spec=EndpointSpec(asked.url, asked.description, asked.events, asked.include_output, asked.enabled),
        tenant_id=tenant_id,
        vault=vault,
        secret=None if asked.secret is None else checked_secret(asked.secret, param="secret"),
        max_endpoints=settings.max_endpoints,
    )


async def change(
    services: Services, endpoint_id: UUID, asked: EndpointUpdate, *, tenant_id: UUID
) -> tuple[WebhookEndpoint, WebhookBreaker | None]:
    """Change the given fields of the tenant's endpoint; return it with its breaker.

    Raises:
        InvalidRequestError: the server sends nothing to this URL.
        NotFoundError: the tenant has no such endpoint.
    """
    if asked.url is not None:
        await _check(services, asked.url)
    spec = EndpointSpec(asked.url, asked.description, asked.events, asked.include_output, asked.enabled)
    return await update(services, endpoint_id, spec, tenant_id=tenant_id)


async def rotate(
    services: Services, endpoint_id: UUID, *, tenant_id: UUID, overlap: timedelta
) -> tuple[WebhookEndpoint, WebhookBreaker | None, str]:
    """Replace the endpoint's secret; return the endpoint, its breaker and the new secret.

    Raises:
        InvalidRequestError: no keys are configured.
        NotFoundError: the tenant has no such endpoint.
    """
    vault = require_vault(services.settings.webhooks)

    def change_secret(session: Session) -> tuple[WebhookEndpoint, WebhookBreaker | None, str]:
        endpoint = endpoints.get(session, endpoint_id, tenant_id=tenant_id)
        secret = endpoints.rotate(session, endpoint, vault, overlap=overlap)
        return endpoint, endpoints.breakers(session, [endpoint]).get(endpoint.id), secret

    return await services.transact(change_secret)


async def _check(services: Services, url: str) -> None:
    """Refuse a URL to which this server sends nothing."""
    allowed = services.settings.webhooks.allowed_hosts
    webhooks.check_destination(url, allowed_hosts=allowed, param="url")
    await services.check_destination(url, param="url")


async def send_test(services: Services, endpoint_id: UUID, *, tenant_id: UUID) -> UUID:
    """Queue a test event for the tenant's endpoint, and return the event's id.

    Raises as `endpoints.send_test` does.
    """

    def send(session: Session) -> UUID:
        return endpoints.send_test(session, endpoints.get(session, endpoint_id, tenant_id=tenant_id))

    event_id = await services.transact(send)
    services.doorbell.ring(EVENTS)
    return event_id


async def replay_event(services: Services, event_id: UUID, *, tenant_id: UUID) -> Replayed:
    """Deliver the tenant's event again; raises as `replays.replay_event` does."""
    replayed = await services.transact(replays.replay_event, event_id=event_id, tenant_id=tenant_id)
    services.doorbell.ring(EVENTS)
    return replayed


async def update(
    services: Services, endpoint_id: UUID, spec: EndpointSpec, *, tenant_id: UUID
) -> tuple[WebhookEndpoint, WebhookBreaker | None]:
    """Change the tenant's endpoint, whose new URL is checked already; return it with its breaker.

    Raises:
        NotFoundError: the tenant has no such endpoint.
    """
    if spec.is_enabled:  # what was queued before stays behind, in bounded transactions
        fail_some = partial(endpoints.fail_pending, endpoint_id=endpoint_id, tenant_id=tenant_id)
        while await services.transact(fail_some):
            pass

    def change(session: Session) -> tuple[WebhookEndpoint, WebhookBreaker | None]:
        endpoint = endpoints.get(session, endpoint_id, tenant_id=tenant_id)
        endpoints.update_endpoint(session, endpoint, spec)
        return endpoint, endpoints.breakers(session, [endpoint]).get(endpoint.id)

    return await services.transact(change)
