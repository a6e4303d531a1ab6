"""Webhooks: rules of signing, URLs and retries; what is sent, where and when is in the modules."""

from jobs.webhooks.rules import (
    ALL_EVENTS,
    DELIVERY_DELAYS,
    ENDPOINT_DISABLED,
    ENDPOINT_TEST,
    EVENT_TYPES,
    JOB_STARTED,
    ON_REQUEST,
    SECRET_PREFIX,
    ParsedUrl,
    WebhookSecretError,
    WebhookUrlError,
    check_destination,
    check_secret,
    check_url,
    next_delivery_at,
    signature_headers,
)

__all__ = [
    "ALL_EVENTS",
    "DELIVERY_DELAYS",
    "ENDPOINT_DISABLED",
    "ENDPOINT_TEST",
    "EVENT_TYPES",
    "JOB_STARTED",
    "ON_REQUEST",
    "SECRET_PREFIX",
    "ParsedUrl",
    "WebhookSecretError",
    "WebhookUrlError",
    "check_destination",
    "check_secret",
    "check_url",
    "next_delivery_at",
    "signature_headers",
]
