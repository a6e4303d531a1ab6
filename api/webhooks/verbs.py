"""What callers and people do with webhooks: send a test, replay an event, switch an endpoint on or off."""

from functools import partial
from uuid import UUID

from sqlalchemy.orm import Session

from api.runtime.services import Services
from jobs.doorbell import EVENTS
from jobs.models.webhook import WebhookEndpoint
from jobs.models.webhook_delivery import WebhookBreaker
from jobs.webhooks import endpoints
from jobs.webhooks.endpoints import EndpointSpec, Replayed


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
    """Deliver the tenant's event again; raises as `endpoints.replay_event` does."""
    replayed = await services.transact(endpoints.replay_event, event_id=event_id, tenant_id=tenant_id)
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
