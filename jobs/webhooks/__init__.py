"""Webhooks: signing, URL rules and the retry schedule.

The modules: `outbox` writes events, `fanout` their destinations; `claims` chooses what to send now, `results`
records how it went.
"""

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
