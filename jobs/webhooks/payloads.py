"""Payloads of webhook events."""

from collections.abc import Mapping

from jobs import ids
from jobs.database.base import JsonObject
from jobs.models.summary import Summary
from jobs.views import optional_rfc3339


def summary_event(summary: Summary) -> JsonObject:
    """Build the payload of a finished summary's event."""
    metadata: Mapping[str, object] = summary.labels
    return {
        "id": ids.summary_id(summary.id),
        "object": "summary",
        "state": summary.state,
        "custom_id": summary.custom_id,
        "metadata": dict(metadata),
        "error": summary.error,
        "finalized_at": optional_rfc3339(summary.finalized_at),
        "result_url": f"/v1/summaries/{ids.summary_id(summary.id)}/result",
    }
