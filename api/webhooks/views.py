"""JSON objects of webhook endpoints and deliveries."""

from typing import Any

from jobs import ids
from jobs.models.webhook import WebhookEndpoint
from jobs.models.webhook_delivery import WebhookBreaker
from jobs.views import rfc3339
from jobs.webhooks.delivery_log import LoggedDelivery


def endpoint_object(endpoint: WebhookEndpoint, breaker: WebhookBreaker | None) -> dict[str, Any]:
    """Render the endpoint as its owner sees it, without secrets."""
    paused_until = breaker.paused_until if breaker and endpoint.disabled_reason is None else None
    return {
        "id": ids.endpoint_id(endpoint.id),
        "object": "webhook_endpoint",
        "url": endpoint.url,
        "description": endpoint.description,
        "events": endpoint.events,
        "include_output": endpoint.includes_output,
        "enabled": endpoint.disabled_reason is None,
        "disabled_reason": endpoint.disabled_reason,
        "disabled_at": endpoint.disabled_at and rfc3339(endpoint.disabled_at),
        "num_failures": breaker.num_failures if breaker else 0,
        "failing_since": rfc3339(breaker.failing_since) if breaker else None,
        "paused_until": paused_until and rfc3339(paused_until),
        "old_secret_expires_at": endpoint.old_secret_expires_at and rfc3339(endpoint.old_secret_expires_at),
        "created_at": rfc3339(endpoint.created_at),
    }


def delivery_object(logged: LoggedDelivery) -> dict[str, Any]:
    """Render a delivery attempt; of the response only its status and size."""
    delivery = logged.delivery
    return {
        "id": ids.delivery_id(delivery.id),
        "object": "webhook_delivery",
        "event_id": ids.event_id(delivery.event_id),
        "event_type": logged.event_type,
        "endpoint_id": ids.endpoint_id(delivery.endpoint_id) if delivery.endpoint_id else None,
        "attempt": delivery.attempt_before if delivery.attempt is None else delivery.attempt,
        "outcome": delivery.outcome,
        "status": delivery.status,
        "response_bytes": delivery.num_bytes,
        "latency_ms": delivery.latency_ms,
        "created_at": rfc3339(delivery.created_at),
    }
