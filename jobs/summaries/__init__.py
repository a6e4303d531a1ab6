"""Summaries: what callers do with them; see planning, prompts and formats for the rest."""

from jobs.summaries.lifecycle import (
    SummaryFilter,
    SummarySpec,
    cancel,
    create,
    ended_before,
    expire,
    find_stopping,
    get,
    guard_document,
    hold_documents,
    list_summaries,
    needs_document,
    overdue,
    prune,
    remove,
    stop_jobs,
    sweep,
)
from jobs.summaries.status import SummaryStatus, read_status
