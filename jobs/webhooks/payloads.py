"""What webhooks say of things that ended."""

from collections.abc import Mapping

from jobs import ids
from jobs.database.base import JsonObject
from jobs.models.summary import Summary
from jobs.views import optional_rfc3339


def summary_event(summary: Summary) -> JsonObject:
    """What webhooks say of a summary that has ended."""
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
