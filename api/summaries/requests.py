"""What callers may send for summaries."""

from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from api.http.fields import CompletionWindow, Priority
from jobs.states.summary import OnGap, Style, SummaryState
from jobs.validation import Closed, CustomId, Metadata, NonEmpty

MAX_DOCUMENTS: Final = 1000
MAX_LENGTH: Final = 8192  # tokens; far above any summary, far below what an engine can answer
MAX_CHUNK_TOKENS: Final = 131_072
MAX_ESTIMATED_TOKENS: Final = 100_000_000

StyleName = Literal["paragraph", "bullets", "sections", "tldr"]
assert set(StyleName.__args__) == set(Style)  # type: ignore[attr-defined]  # noqa: S101  # literals have args
OnGapName = Literal["skip", "fail"]
assert set(OnGapName.__args__) == set(OnGap)  # type: ignore[attr-defined]  # noqa: S101  # literals have args
SummaryStateName = Literal["preparing", "running", "completed", "failed", "cancelled", "expired"]
assert set(SummaryStateName.__args__) == set(SummaryState)  # type: ignore[attr-defined]  # noqa: S101  # literals have args

DocumentId = Annotated[str, Field(min_length=1, max_length=64)]


class SummaryOptions(Closed):
    """How to summarize; everything has a default."""

    combine: bool = Field(False, description="one summary over all documents; else one of each")
    style: StyleName = "paragraph"
    length: int = Field(400, ge=16, le=MAX_LENGTH, description="tokens that a summary should have")
    language: Annotated[NonEmpty, Field(max_length=64)] | None = Field(
        None, description="to write in, in words or as a code; null: the document's own"
    )
    instructions: Annotated[NonEmpty, Field(max_length=4000)] | None = Field(
        None, description="followed beside the template's own, for every part and for the whole"
    )
    focus: Annotated[NonEmpty, Field(max_length=1000)] | None = Field(
        None, description="what you want to know above all"
    )
    on_gap: OnGapName = Field(
        "skip",
        description="when a part failed twice: `skip` goes on without it and names the gap, `fail` ends the"
        " summary",
    )
    chunk_tokens: int | None = Field(
        None, ge=64, le=MAX_CHUNK_TOKENS, description="of a chunk at most; null: what packs the engine best"
    )
    overlap_tokens: int = Field(0, ge=0, le=4096, description="that a chunk repeats of the one before")
    model: NonEmpty | None = Field(None, description="null: the one that is served")

    @model_validator(mode="after")
    def _overlap_is_small(self) -> Self:
        if self.chunk_tokens is not None and 2 * self.overlap_tokens >= self.chunk_tokens:
            raise PydanticCustomError("overlap", "overlap_tokens must be below half of chunk_tokens.")
        return self


class SummaryRequest(SummaryOptions):
    """Summaries of documents that were uploaded before; only `documents` is required."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "documents": ["doc_019c2f3e5a4b7c8d9e0f1a2b3c4d5e6f"],
                    "style": "bullets",
                    "length": 300,
                    "focus": "what changes for existing customers",
                }
            ]
        }
    )

    documents: list[DocumentId] = Field(
        default_factory=list, max_length=MAX_DOCUMENTS, description="ids, each once; 1 to 1000"
    )
    urls: list[Any] | None = Field(None, description="refused: this server fetches nothing from elsewhere")
    priority: Priority = Field("normal", description="order among your own jobs")
    custom_id: CustomId | None = Field(None, description="your own name for it; need not be unique")
    metadata: Metadata | None = Field(None, description="pairs kept with the summary")
    completion_window: CompletionWindow | None = Field(None, description="expires after it; null: never")
    webhook_url: NonEmpty | None = Field(None, description="told once a summary has ended; https")
    webhook_secret: NonEmpty | None = Field(
        None, description="`whsec_…`, signs what goes there; null: your default does"
    )


class SummaryEstimateRequest(SummaryOptions):
    """What to estimate: documents that are ready, or just their lengths."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"tokens": [200_000, 4000], "length": 300}]})

    documents: list[DocumentId] = Field(default_factory=list, max_length=MAX_DOCUMENTS)
    tokens: list[Annotated[int, Field(ge=1, le=MAX_ESTIMATED_TOKENS)]] = Field(
        default_factory=list, max_length=MAX_DOCUMENTS, description="of documents that are not here yet"
    )
    priority: Priority = "normal"
    custom_id: CustomId | None = None
    metadata: Metadata | None = None
    completion_window: CompletionWindow | None = None
    webhook_url: NonEmpty | None = None
    webhook_secret: NonEmpty | None = None


class SummaryListQuery(BaseModel):
    """Which summaries to list, and from where on."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    state: SummaryStateName | None = None
    custom_id: CustomId | None = None
    document: str | None = Field(None, description="those of this document")
    after: str | None = Field(None, description="id of the last summary seen; the list goes on behind it")
    limit: int = Field(20, ge=1, le=100)
