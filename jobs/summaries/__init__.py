"""Summaries: what callers do with them; see planning, prompts and formats for the rest."""

from jobs.summaries.lifecycle import (
    SummaryFilter,
    SummarySpec,
    SummaryStatus,
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
    read_status,
    remove,
    stop_jobs,
    sweep,
)
