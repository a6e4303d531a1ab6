"""Replies about summaries, modelled for the API documentation."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from api.http.fields import Priority, StateName
from api.http.replies import GoneReply, JobError, ListReply, example, gone_example, page_example
from api.summaries.requests import OnGapName, StyleName, SummaryStateName

_ID = "sum_019c2f3e5a4b7c8d9e0f1a2b3c4d5e6f"
_DOCUMENT = "doc_019c2f3e5a4b7c8d9e0f1a2b3c4d5e6f"
_CHUNK: dict[str, Any] = {
    "document_id": _DOCUMENT,
    "index": 0,
    "start": 0,
    "end": 61_544,
    "pages": [1, 24],
    "state": "completed",
    "summary": "The first part …",
    "error": None,
}
_TEMPLATES = {"whole": "whole-1", "map": "map-1", "reduce": "reduce-1"}
_SUMMARY: dict[str, Any] = {
    "id": _ID,
    "object": "summary",
    "state": "completed",
    "documents": [_DOCUMENT],
    "combine": False,
    "style": "paragraph",
    "length": 400,
    "language": None,
    "instructions": None,
    "focus": None,
    "on_gap": "skip",
    "chunk_tokens": None,
    "overlap_tokens": 0,
    "model": "llama-3.1-8b-instruct",
    "priority": "normal",
    "templates": {"whole": "whole-1", "map": "map-1", "reduce": "reduce-1"},
    "plan": None,
    "levels": None,
    "cancel_requested": False,
    "summary": "The report finds that …",
    "gaps": [],
    "progress": {
        "jobs": 1,
        "completed": 1,
        "failed": 0,
        "running": 0,
        "tokens_done": 91_377,
        "tokens_total": 91_377,
    },
    "usage": {"prompt_tokens": 91_377, "completion_tokens": 380},
    "error": None,
    "metadata": {},
    "custom_id": None,
    "created_at": "2026-01-31T12:00:00.123456Z",
    "planned_at": "2026-01-31T12:00:01.000000Z",
    "finalized_at": "2026-01-31T12:01:00.000000Z",
    "expires_at": None,
}


class GapReply(BaseModel):
    """A stretch of a document that the summary does not cover."""

    document_id: str
    start: int | None = Field(description="Character of the document's text; null: the whole text.")
    end: int | None
    pages: list[int] | None = Field(description="First and last page, from 1; null: no pages.")
    error: JobError | None


class ChunkReply(BaseModel):
    """A stretch of a document and its summary. The chunks cover the whole text, each part once."""

    document_id: str
    index: int = Field(description="Position in its document, from 0.")
    start: int = Field(description="Character of the document's text.")
    end: int
    pages: list[int] | None = Field(description="First and last page, from 1; null: no pages.")
    state: StateName
    summary: str | None
    error: JobError | None


class ProgressReply(BaseModel):
    """The progress of a summary."""

    jobs: int
    completed: int
    failed: int = Field(description="Jobs that ended without completing, after their second attempt.")
    running: int
    tokens_done: int = Field(description="Planned prompt tokens of the jobs that have ended.")
    tokens_total: int


class SummaryUsageReply(BaseModel):
    """Tokens of all jobs, including failed attempts."""

    prompt_tokens: int
    completion_tokens: int


class TemplatesReply(BaseModel):
    """Names and versions of the prompt templates."""

    whole: str
    map: str
    reduce: str


class PlanReply(BaseModel):
    """How the documents were cut."""

    levels: int = Field(description="Levels of the tree; 1 for a document that fits in one job.")
    chunks: int
    jobs: int
    chunk_tokens: int = Field(description="Maximum per chunk.")
    part_tokens: int = Field(description="Target length of a chunk's summary.")
    fan_in: int = Field(description="Maximum number of summaries joined at once.")
    prompt_tokens: int = Field(description="Expected, over all jobs.")


class SummaryReply(BaseModel):
    """A summary."""

    model_config = example(**_SUMMARY)

    id: str
    object: Literal["summary"]
    state: SummaryStateName
    documents: list[str]
    combine: bool
    style: StyleName
    length: int
    language: str | None
    instructions: str | None
    focus: str | None
    on_gap: OnGapName
    chunk_tokens: int | None = Field(description="As requested.")
    overlap_tokens: int
    model: str
    priority: Priority
    templates: TemplatesReply
    plan: PlanReply | None = Field(description="Null until planned.")
    levels: int | None
    cancel_requested: bool
    summary: str | None = Field(description="Null unless completed.")
    gaps: list[GapReply]
    progress: ProgressReply
    usage: SummaryUsageReply
    error: JobError | None
    metadata: dict[str, str]
    custom_id: str | None
    created_at: datetime
    planned_at: datetime | None
    finalized_at: datetime | None
    expires_at: datetime | None


class SeenSummaryReply(SummaryReply):
    """A summary with its chunks, which `chunks=false` omits."""

    model_config = example(**_SUMMARY, chunks=[_CHUNK])

    chunks: list[ChunkReply] | None = Field(None, description="The chunks, in text order.")
    next_chunks_start: int | None = Field(
        None, description="Pass it as `chunks_start` to get the next chunks; absent after the last."
    )


class SummaryListReply(ListReply[SummaryReply]):
    """A page of summaries, newest first; or those that one request made, in the order of its documents."""

    model_config = page_example(_SUMMARY)

    first_id: str | None = None
    last_id: str | None = None


class SummaryResultReply(BaseModel):
    """A summary's text with its sources."""

    model_config = example(
        id=_ID,
        state="completed",
        custom_id=None,
        documents=[_DOCUMENT],
        summary="The report finds that …",
        chunks=[_CHUNK],
        gaps=[],
        usage={"prompt_tokens": 91_377, "completion_tokens": 380},
        templates=_TEMPLATES,
        model="llama-3.1-8b-instruct",
        error=None,
    )

    id: str
    state: Literal["completed", "failed", "cancelled", "expired"]
    custom_id: str | None
    documents: list[str]
    summary: str | None
    chunks: list[ChunkReply]
    gaps: list[GapReply]
    usage: SummaryUsageReply
    templates: TemplatesReply
    model: str
    error: JobError | None


class EstimatedDocumentReply(BaseModel):
    """What one document would take."""

    id: str | None = Field(description="Null: only its length was given.")
    tokens: int
    chunks: int
    levels: int
    jobs: int


class CompletionTokensReply(BaseModel):
    """Tokens that would be generated."""

    expected: int
    max: int


class SummaryEstimateReply(BaseModel):
    """What a request for summaries would take."""

    model_config = example(
        object="summary.estimate",
        chunks=15,
        levels=2,
        jobs=16,
        prompt_tokens=210_412,
        completion_tokens={"expected": 7600, "max": 9980},
        chunk_tokens=15_578,
        part_tokens=480,
        is_exact=True,
        estimated_seconds=96,
        documents=[{"id": _DOCUMENT, "tokens": 200_019, "chunks": 15, "levels": 2, "jobs": 16}],
    )

    object: Literal["summary.estimate"]
    chunks: int
    levels: int = Field(description="Levels of the highest tree.")
    jobs: int
    prompt_tokens: int = Field(description="Expected; upper bounds for joins.")
    completion_tokens: CompletionTokensReply
    chunk_tokens: int = Field(description="Maximum per chunk.")
    part_tokens: int
    is_exact: bool = Field(
        description="True: the documents were really cut; false: chunks are computed from lengths."
    )
    estimated_seconds: int | None = Field(description="After all jobs queued now; null: no engine runs.")
    documents: list[EstimatedDocumentReply]


class DeletedSummaryReply(GoneReply[Literal["summary"]]):
    """A summary that was deleted."""

    model_config = gone_example(_SUMMARY)
