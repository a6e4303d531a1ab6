"""The public shapes of summaries, in replies and in webhooks."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal
from uuid import UUID

from pydantic import Field
from typing_extensions import TypedDict

from jobs import ids
from jobs.database.base import JsonObject
from jobs.documents.views import ResultWarning
from jobs.models.summary import Summary
from jobs.sealing.content import fault_of, shown
from jobs.states.summary import OnGap, Style, SummaryState
from jobs.summaries.stored_templates import variables_of
from jobs.validation import choice, documented_as
from jobs.views import (
    PRIORITY_NAMES,
    Labels,
    Moment,
    Priority,
    StateName,
    StoredError,
    optional_rfc3339,
    rfc3339,
)

StyleName = Annotated[str, choice(Style)]
OnGapName = Annotated[str, choice(OnGap)]
SummaryStateName = Annotated[str, choice(SummaryState)]
Pages = Annotated[Sequence[int] | None, Field(description="First and last page, from 1; null: no pages.")]


class ProgressReply(TypedDict):
    """The progress of a summary."""

    jobs: int
    completed: int
    failed: Annotated[
        int, Field(description="Jobs that ended without completing, after their second attempt.")
    ]
    running: int
    tokens_done: Annotated[int, Field(description="Planned prompt tokens of the jobs that have ended.")]
    tokens_total: int


class SummaryUsageReply(TypedDict):
    """Tokens of all jobs, including failed attempts."""

    prompt_tokens: int
    cached_tokens: Annotated[int, Field(description="Of these, what engines had in their caches.")]
    completion_tokens: int


class GapReply(TypedDict):
    """A stretch of a document that the summary does not cover."""

    document_id: str
    start: Annotated[int | None, Field(description="Character of the document's text; null: the whole text.")]
    end: int | None
    pages: Pages
    error: StoredError | None


class QuoteReply(TypedDict):
    """A passage that a summary has in quotation marks."""

    quote: Annotated[str, Field(description="As the summary has it, without its marks.")]
    at: Annotated[int, Field(description="Character of the summary at which it begins.")]
    quote_in_text: Annotated[
        bool | None,
        Field(
            description="Whether these words are in a document, up to white space, hyphens and typography;"
            " null: not every text could be looked through."
        ),
    ]
    document_id: Annotated[str | None, Field(description="The first document that has it.")]
    start: Annotated[int | None, Field(description="Character of that document's text.")]
    end: int | None
    pages: Pages


class ChunkReply(TypedDict):
    """A stretch of a document and its summary. The chunks cover the whole text, each part once."""

    document_id: str
    index: Annotated[int, Field(description="Position in its document, from 0.")]
    start: Annotated[int, Field(description="Character of the document's text.")]
    end: int
    pages: Pages
    state: StateName
    summary: str | None
    error: StoredError | None


class TemplatesReply(TypedDict):
    """Names and versions of the prompt templates; of your own `custom-` and a hash of its words."""

    whole: str
    map: str
    reduce: str


class PlanReply(TypedDict):
    """How the documents were cut."""

    levels: Annotated[int, Field(description="Levels of the tree; 1 for a document that fits in one job.")]
    chunks: int
    jobs: int
    chunk_tokens: Annotated[int, Field(description="Maximum per chunk.")]
    part_tokens: Annotated[int, Field(description="Target length of a chunk's summary.")]
    fan_in: Annotated[int, Field(description="Maximum number of summaries joined at once.")]
    prompt_tokens: Annotated[int, Field(description="Expected, over all jobs.")]


OwnTemplateReply = Annotated[
    dict[str, str] | None, Field(description="Your own template, by its parts; null: none.")
]
StoredTemplates = Annotated[JsonObject, documented_as(TemplatesReply)]
StoredWarnings = Annotated[
    Sequence[Annotated[JsonObject, documented_as(ResultWarning)]],
    Field(description="About the documents' texts: what was guessed, replaced or not read."),
]


class SummaryObject(TypedDict):
    """A summary as JSON; times are RFC 3339 in UTC."""

    id: str
    object: Literal["summary"]
    state: SummaryStateName
    documents: Sequence[str]
    combine: bool
    style: StyleName
    length: int
    language: str | None
    instructions: str | None
    focus: str | None
    chat_template_kwargs: Annotated[JsonObject, Field(description="As requested; empty: none.")]
    template: OwnTemplateReply
    on_gap: OnGapName
    chunk_tokens: Annotated[int | None, Field(description="As requested.")]
    overlap_tokens: int
    model: str
    priority: Priority
    templates: StoredTemplates
    plan: Annotated[
        Annotated[JsonObject, documented_as(PlanReply)] | None, Field(description="Null until planned.")
    ]
    levels: int | None
    cancel_requested: bool
    summary: Annotated[
        str | None,
        Field(description="Null unless completed, and in a list if it cannot be decrypted: see `error`."),
    ]
    gaps: Sequence[GapReply]
    warnings: StoredWarnings
    progress: ProgressReply
    usage: SummaryUsageReply
    error: StoredError | None
    metadata: Labels
    custom_id: str | None
    created_at: Moment
    planned_at: Moment | None
    finalized_at: Moment | None
    expires_at: Moment | None


class SummaryWithChunks(SummaryObject):
    """A summary with all its chunks, as provenance."""

    chunks: Sequence[ChunkReply]


class SummaryWithFirstChunks(SummaryWithChunks):
    """A summary with some of its chunks; more follow from `next_chunks_start` on."""

    next_chunks_start: int


NO_PROGRESS = ProgressReply(jobs=0, completed=0, failed=0, running=0, tokens_done=0, tokens_total=0)
NO_USAGE = SummaryUsageReply(prompt_tokens=0, cached_tokens=0, completion_tokens=0)


@dataclass(slots=True)
class SummaryDetails:
    """What other tables hold about one summary."""

    documents: list[UUID] = field(default_factory=list)
    template: dict[str, str] | None = None
    text: str | None = None  # or an `Unreadable`
    gaps: list[GapReply] = field(default_factory=list)
    progress: ProgressReply = field(default_factory=NO_PROGRESS.copy)
    usage: SummaryUsageReply = field(default_factory=NO_USAGE.copy)


def summary_object(summary: Summary, details: SummaryDetails) -> SummaryObject:
    """Build the public shape of a summary."""
    levels = (summary.plan or {}).get("levels")
    return SummaryObject(
        id=ids.summary_id(summary.id),
        object="summary",
        state=summary.state,
        documents=[ids.document_id(each) for each in details.documents],
        combine=summary.is_combined,
        style=summary.style,
        length=summary.length,
        language=summary.language,
        instructions=shown(summary.instructions),
        focus=shown(summary.focus),
        chat_template_kwargs=variables_of(summary),
        template=details.template,
        on_gap=summary.on_gap,
        chunk_tokens=summary.chunk_tokens,
        overlap_tokens=summary.overlap_tokens,
        model=summary.model,
        priority=PRIORITY_NAMES[summary.rank],
        templates=summary.templates,
        plan=summary.plan,
        levels=levels if isinstance(levels, int) else None,
        cancel_requested=summary.stop_reason == "cancel",
        summary=shown(details.text),
        gaps=details.gaps,
        warnings=summary.warnings,
        progress=details.progress,
        usage=details.usage,
        error=summary.error or fault_of(details.text),
        metadata=summary.labels,
        custom_id=summary.custom_id,
        created_at=rfc3339(summary.created_at),
        planned_at=optional_rfc3339(summary.planned_at),
        finalized_at=optional_rfc3339(summary.finalized_at),
        expires_at=optional_rfc3339(summary.expires_at),
    )
