"""The public shapes of summaries, in replies and in webhooks."""

from collections.abc import Sequence
from typing import TypedDict
from uuid import UUID

from jobs import ids
from jobs.database.base import JsonObject
from jobs.models.summary import Summary
from jobs.views import PRIORITY_NAMES, optional_rfc3339, rfc3339


class SummaryProgress(TypedDict):
    """The progress of a summary's jobs; tokens are those of prompts, as planned."""

    jobs: int
    completed: int
    failed: int
    running: int
    tokens_done: int
    tokens_total: int


class SummaryUsage(TypedDict):
    """Tokens of all jobs of a summary, including failed attempts."""

    prompt_tokens: int
    completion_tokens: int


class GapObject(TypedDict):
    """A stretch of a document that the summary lacks; the whole document if `start` is null."""

    document_id: str
    start: int | None
    end: int | None
    pages: Sequence[int] | None
    error: JsonObject | None


class ChunkObject(TypedDict):
    """A stretch of a document, in characters of its text, and its summary."""

    document_id: str
    index: int
    start: int
    end: int
    pages: Sequence[int] | None
    state: str
    summary: str | None
    error: JsonObject | None


class SummaryObject(TypedDict):
    """A summary as JSON; times are RFC 3339 in UTC."""

    id: str
    object: str
    state: str
    documents: Sequence[str]
    combine: bool
    style: str
    length: int
    language: str | None
    instructions: str | None
    focus: str | None
    on_gap: str
    chunk_tokens: int | None
    overlap_tokens: int
    model: str
    priority: str
    templates: JsonObject
    plan: JsonObject | None
    levels: int | None
    cancel_requested: bool
    summary: str | None
    gaps: Sequence[GapObject]
    progress: SummaryProgress
    usage: SummaryUsage
    error: JsonObject | None
    metadata: JsonObject
    custom_id: str | None
    created_at: str
    planned_at: str | None
    finalized_at: str | None
    expires_at: str | None


class SummaryWithChunks(SummaryObject):
    """A summary with all its chunks, as provenance."""

    chunks: Sequence[ChunkObject]


class SummaryWithFirstChunks(SummaryWithChunks):
    """A summary with some of its chunks; more follow from `next_chunks_start` on."""

    next_chunks_start: int


NO_PROGRESS = SummaryProgress(jobs=0, completed=0, failed=0, running=0, tokens_done=0, tokens_total=0)
NO_USAGE = SummaryUsage(prompt_tokens=0, completion_tokens=0)


def summary_object(
    summary: Summary,
    *,
    documents: Sequence[UUID],
    text: str | None,
    gaps: Sequence[GapObject],
    progress: SummaryProgress,
    usage: SummaryUsage,
) -> SummaryObject:
    """Build the public shape of a summary."""
    levels = (summary.plan or {}).get("levels")
    return SummaryObject(
        id=ids.summary_id(summary.id),
        object="summary",
        state=summary.state,
        documents=[ids.document_id(each) for each in documents],
        combine=summary.is_combined,
        style=summary.style,
        length=summary.length,
        language=summary.language,
        instructions=summary.instructions,
        focus=summary.focus,
        on_gap=summary.on_gap,
        chunk_tokens=summary.chunk_tokens,
        overlap_tokens=summary.overlap_tokens,
        model=summary.model,
        priority=PRIORITY_NAMES[summary.rank],
        templates=summary.templates,
        plan=summary.plan,
        levels=levels if isinstance(levels, int) else None,
        cancel_requested=summary.stop_reason == "cancel",
        summary=text,
        gaps=gaps,
        progress=progress,
        usage=usage,
        error=summary.error,
        metadata=summary.labels,
        custom_id=summary.custom_id,
        created_at=rfc3339(summary.created_at),
        planned_at=optional_rfc3339(summary.planned_at),
        finalized_at=optional_rfc3339(summary.finalized_at),
        expires_at=optional_rfc3339(summary.expires_at),
    )
