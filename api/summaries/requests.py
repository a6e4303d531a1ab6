"""Requests about summaries."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from api.http.fields import example
from api.http.identifiers import PageQuery
from jobs.states.summary import NodeKind
from jobs.summaries.own_templates import MAX_TEMPLATE_CHARS, OwnTemplate, PartRules
from jobs.summaries.views import OnGapName, StyleName, SummaryStateName
from jobs.validation import Closed, CompletionWindow, CustomId, Metadata, NonEmpty, TemplateVariables
from jobs.views import Priority

MAX_DOCUMENTS: Final = 1000
MAX_LENGTH: Final = 8192  # tokens; far above any summary, far below what an engine can answer
MAX_CHUNK_TOKENS: Final = 131_072
MAX_ESTIMATED_TOKENS: Final = 100_000_000

DocumentId = Annotated[str, Field(min_length=1, max_length=64)]


TemplatePart = Annotated[NonEmpty, Field(max_length=MAX_TEMPLATE_CHARS)] | None


class PartsTemplate(Closed):
    """Your own words for what is asked of documents, in place of ours; parts that are null stay ours."""

    whole: TemplatePart = Field(None, description="Of a document that fits in one prompt.")
    map: TemplatePart = Field(None, description="Of one part of a longer document.")


class TreeTemplate(PartsTemplate):
    """Your own words for what is asked of documents, in place of ours; parts that are null stay ours."""

    reduce: TemplatePart = Field(None, description="Of what parts said, to be joined.")


def checked_template(asked: PartsTemplate | None, rules: Mapping[NodeKind, PartRules]) -> OwnTemplate | None:
    """Return the caller's own template, checked; None: it asks for none.

    Raises:
        InvalidRequestError: a placeholder is unknown, missing or there twice.
    """
    if asked is None:
        return None
    own = OwnTemplate.of(asked.model_dump())
    own.check(rules)
    return own


class SummaryOptions(Closed):
    """How to summarize; every field has a default."""

    combine: bool = Field(False, description="True: one summary over all documents; false: one of each.")
    style: StyleName = "paragraph"
    length: int = Field(400, ge=16, le=MAX_LENGTH, description="Target length of a summary, in tokens.")
    language: Annotated[NonEmpty, Field(max_length=64)] | None = Field(
        None, description="Language to write in, by name or code; null: the document's own."
    )
    instructions: Annotated[NonEmpty, Field(max_length=4000)] | None = Field(
        None, description="Added to the template's own instructions, for every chunk and for the whole."
    )
    focus: Annotated[NonEmpty, Field(max_length=1000)] | None = Field(
        None, description="What you want to know above all."
    )
    chat_template_kwargs: TemplateVariables | None = Field(
        None,
        description="Variables for the model's chat template in every prompt, such as `enable_thinking`; one"
        " that the template does not know has no effect.",
    )
    template: TreeTemplate | None = Field(
        None,
        description=f"Your own words for what is asked of a document (`whole`), of a part (`map`) and of"
        f" summaries to be joined (`reduce`), of at most {MAX_TEMPLATE_CHARS:,} characters each; null: ours."
        " Placeholders: `{{words}}`, `{{language}}`, in `whole` and `reduce` `{{style}}`, and `{{focus}}` and"
        " `{{instructions}}` if you set these; each once at most, and none may be missing for what you set.",
    )
    on_gap: OnGapName = Field(
        "skip",
        description="After a chunk failed twice, `skip` continues without it and reports the gap; `fail`"
        " fails the summary.",
    )
    chunk_tokens: int | None = Field(
        None,
        ge=64,
        le=MAX_CHUNK_TOKENS,
        description="Maximum per chunk; null: the size that packs the engine best.",
    )
    overlap_tokens: int = Field(
        0, ge=0, le=4096, description="Tokens that a chunk repeats from the one before."
    )
    model: NonEmpty | None = Field(None, description="Null: the served model.")

    @model_validator(mode="after")
    def _overlap_is_small(self) -> Self:
        if self.chunk_tokens is not None and 2 * self.overlap_tokens >= self.chunk_tokens:
            raise PydanticCustomError("overlap", "overlap_tokens must be below half of chunk_tokens.")
        return self


class SummaryRequest(SummaryOptions):
    """Summaries of uploaded documents; only `documents` is required."""

    model_config = example(
        documents=["doc_019c2f3e5a4b7c8d9e0f1a2b3c4d5e6f"],
        style="bullets",
        length=300,
        focus="what changes for existing customers",
    )

    documents: list[DocumentId] = Field(
        default_factory=list, max_length=MAX_DOCUMENTS, description="1 to 1000 document ids, each once."
    )
    urls: list[Any] | None = Field(None, description="Refused: this server does not fetch URLs.")
    priority: Priority = Field("normal", description="Order among your own jobs.")
    custom_id: CustomId | None = Field(None, description="Your own name for it; need not be unique.")
    metadata: Metadata | None = Field(None, description="Key-value pairs kept with the summary.")
    completion_window: CompletionWindow | None = Field(
        None, description="The summary expires after it; null: never."
    )
    webhook_url: NonEmpty | None = Field(None, description="Notified once a summary has ended; https only.")
    webhook_secret: NonEmpty | None = Field(
        None, description="`whsec_…`, signs deliveries; null: your default secret."
    )


class SummaryEstimateRequest(SummaryOptions):
    """Summaries to estimate: of documents that are ready, or of given lengths."""

    model_config = example(tokens=[200_000, 4000], length=300)

    documents: list[DocumentId] = Field(default_factory=list, max_length=MAX_DOCUMENTS)
    tokens: list[Annotated[int, Field(ge=1, le=MAX_ESTIMATED_TOKENS)]] = Field(
        default_factory=list,
        max_length=MAX_DOCUMENTS,
        description="Lengths of documents that are not uploaded yet.",
    )
    priority: Priority = "normal"
    custom_id: CustomId | None = None
    metadata: Metadata | None = None
    completion_window: CompletionWindow | None = None
    webhook_url: NonEmpty | None = None
    webhook_secret: NonEmpty | None = None


class SummaryListQuery(PageQuery):
    """The summaries to list, and where to start."""

    state: SummaryStateName | None = None
    custom_id: CustomId | None = None
    document: str | None = Field(None, description="Only summaries of this document.")
