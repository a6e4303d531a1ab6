"""The span of one attempt to deliver an event; the receiver gets its context in `traceparent`."""

from datetime import timedelta
from typing import Final
from urllib.parse import urlsplit

from jobs import ids
from jobs.traces.context import TraceContext, span_id_of
from jobs.traces.span import Span, SpanKind, known
from jobs.webhooks.claims import ClaimedDispatch
from jobs.webhooks.results import DeliveryResult, is_delivered, outcome_of

WEBHOOK: Final = "webhook"
_MAX_HOST: Final = 255  # bytes of a name in DNS


def context_of(dispatch: ClaimedDispatch) -> TraceContext | None:
    """Return the context of this attempt's span; None: its event has no trace."""
    above = TraceContext.parse(dispatch.traceparent)
    return above and above.below(span_id_of(WEBHOOK, dispatch.id, dispatch.attempt))


def span_of(dispatch: ClaimedDispatch, result: DeliveryResult, *, waited: timedelta) -> Span | None:
    """Return the span of an attempt that is over.

    Of the URL it tells the host alone, as path and query may hold secrets.

    Args:
        dispatch: what was sent.
        result: of the exchange.
        waited: from the claim to its start.
    """
    context = context_of(dispatch)
    if context is None:
        return None
    above = TraceContext.parse(dispatch.traceparent)
    started_at = dispatch.claimed_at + waited
    return Span(
        name=WEBHOOK,
        context=context,
        parent_id=above.span_id if above else None,
        started_at=started_at,
        ended_at=started_at + result.latency,
        kind=SpanKind.CLIENT,
        attributes=known(
            http__request__method="POST",
            http__response__status_code=result.status,
            http__request__resend_count=dispatch.attempt - 1 or None,
            server__address=(urlsplit(dispatch.url).hostname or "")[:_MAX_HOST] or None,
            longbatch__event__id=ids.event_id(dispatch.event_id),
            longbatch__event__type=dispatch.event_type,
        ),
        error_type=None if is_delivered(result) else str(result.status or outcome_of(result)),
    )
