"""Replies about summaries, modelled for the API documentation."""

from typing import Annotated, Any, Literal, NotRequired

from pydantic import BaseModel, Field, with_config

from api.http.fields import example
from api.http.replies import DeletionReply, ListReply, gone_example, page_example
from jobs.summaries.formats import SummaryResult
from jobs.summaries.views import ChunkReply, QuoteReply, SummaryObject

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
_QUOTE: dict[str, Any] = {
    "quote": "three months to the end of a quarter",
    "at": 112,
    "quote_in_text": True,
    "document_id": _DOCUMENT,
    "start": 9_204,
    "end": 9_240,
    "pages": [4, 4],
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
    "chat_template_kwargs": {},
    "template": None,
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
    "warnings": [
        {
            "document_id": _DOCUMENT,
            "code": "pages_without_text",
            "message": "2 pages have no text; they may be scanned.",
            "pages": [3, 4],
        }
    ],
    "progress": {
        "jobs": 1,
        "completed": 1,
        "failed": 0,
        "running": 0,
        "tokens_done": 91_377,
        "tokens_total": 91_377,
    },
    "usage": {"prompt_tokens": 91_377, "cached_tokens": 0, "completion_tokens": 380},
    "error": None,
    "metadata": {},
    "custom_id": None,
    "created_at": "2026-01-31T12:00:00.123456Z",
    "planned_at": "2026-01-31T12:00:01.000000Z",
    "finalized_at": "2026-01-31T12:01:00.000000Z",
    "expires_at": None,
}


@with_config(example(**_SUMMARY))
class SummaryReply(SummaryObject):
    """A summary."""


@with_config(example(**_SUMMARY, chunks=[_CHUNK]))
class SummaryWithChunksReply(SummaryObject):
    """A summary with its chunks, which `chunks=false` omits."""

    chunks: NotRequired[Annotated[list[ChunkReply] | None, Field(description="The chunks, in text order.")]]
    quotes: NotRequired[
        Annotated[list[QuoteReply], Field(description="What it quotes, as the result has it: `quotes=true`.")]
    ]
    next_chunks_start: NotRequired[
        Annotated[
            int | None,
            Field(description="Pass it as `chunks_start` to get the next chunks; absent after the last."),
        ]
    ]


class SummaryListReply(ListReply[SummaryReply]):
    """A page of summaries, newest first; or those that one request made, in the order of its documents."""

    model_config = page_example(_SUMMARY)

    first_id: str | None = None
    last_id: str | None = None


@with_config(
    example(
        id=_ID,
        state="completed",
        custom_id=None,
        documents=[_DOCUMENT],
        summary="The report finds that …",
        chunks=[_CHUNK],
        gaps=[],
        quotes=[_QUOTE],
        usage={"prompt_tokens": 91_377, "cached_tokens": 0, "completion_tokens": 380},
        templates=_TEMPLATES,
        model="llama-3.1-8b-instruct",
        error=None,
    )
)
class SummaryResultReply(SummaryResult):
    """A summary's text with its sources."""


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


class DeletedSummaryReply(DeletionReply[Literal["summary"]]):
    """A summary that was deleted."""

    model_config = gone_example(_SUMMARY)
