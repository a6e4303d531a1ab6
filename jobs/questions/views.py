"""The public shapes of answers, in replies and in webhooks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal
from uuid import UUID

from pydantic import Field
from typing_extensions import TypedDict

from jobs import ids
from jobs.database.base import JsonObject
from jobs.models import DocumentFinding, Summary
from jobs.sealing.content import ContentUnreadableError, require_readable, shown
from jobs.states.summary import Purpose
from jobs.summaries.queries import progress_reply, usage_reply
from jobs.summaries.stored_templates import variables_of
from jobs.summaries.views import (
    OwnTemplateReply,
    PlanReply,
    ProgressReply,
    StoredTemplates,
    StoredWarnings,
    SummaryStateName,
    SummaryUsageReply,
)
from jobs.trees.counts import TreeCounts
from jobs.validation import documented_as
from jobs.views import (
    PRIORITY_NAMES,
    Labels,
    Moment,
    Priority,
    StoredError,
    optional_rfc3339,
    rfc3339,
)

_Pages = Annotated[Sequence[int] | None, Field(description="First and last page, from 1; null: no pages.")]


class AnswerGapReply(TypedDict):
    """A part of the document that could not be asked."""

    start: Annotated[int, Field(description="Character of the document's text.")]
    end: int
    pages: _Pages
    error: StoredError | None


class AnswerReply(TypedDict):
    """What the document says to one question."""

    question: str
    found: Annotated[
        bool | None, Field(description="False: the document does not answer it; null: see `error`.")
    ]
    answer: Annotated[str | None, Field(description="Null unless `found`.")]
    pages: Annotated[
        Sequence[int] | None,
        Field(
            description="First and last page that the answer is founded on: of the quote if it is in the"
            " text, otherwise of the parts that answered. Null: no pages, or no answer."
        ),
    ]
    quote: Annotated[str | None, Field(description="As the model gave it; null: it gave none.")]
    quote_in_text: Annotated[
        bool | None,
        Field(
            description="Whether the quoted words are in the document, up to white space, hyphens and"
            " typography; null: there is no quote, or no longer a text."
        ),
    ]
    start: Annotated[
        int | None, Field(description="Where the quote begins in the document's text; null: it is not there.")
    ]
    end: int | None
    gaps: Annotated[Sequence[AnswerGapReply], Field(description="Parts that the answer leaves out.")]
    error: Annotated[StoredError | None, Field(description="Why the question is not answered; null: it is.")]


class DocumentReading(TypedDict):
    """What answers and extractions have in common; times are RFC 3339 in UTC."""

    id: str
    state: SummaryStateName
    document: str
    length: int
    chat_template_kwargs: Annotated[JsonObject, Field(description="As requested; empty: none.")]
    template: OwnTemplateReply
    chunk_tokens: Annotated[int | None, Field(description="As requested.")]
    model: str
    priority: Priority
    plan: Annotated[
        Annotated[JsonObject, documented_as(PlanReply)] | None, Field(description="Null until planned.")
    ]
    cancel_requested: bool
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


class AnswersObject(DocumentReading):
    """The answers of one document as JSON."""

    object: Literal["answers"]
    templates: StoredTemplates
    questions: Sequence[str]


class AnswersWithAnswers(AnswersObject):
    """The same with each answer, in the order of the questions; none before it has ended."""

    answers: Sequence[AnswerReply]


@dataclass(frozen=True, slots=True)
class ReadingDetails:
    """What other tables hold about one row of answers or of an extraction."""

    document_id: UUID
    counts: TreeCounts
    template: dict[str, str] | None


def answers_object(asked: Summary, read: ReadingDetails) -> AnswersObject:
    """Build the public shape of a document's answers."""
    questions = shown(asked.questions)
    return AnswersObject(
        object=Purpose.ANSWERS.value,
        questions=questions or [],
        templates=asked.templates,
        **reading(asked, ids.answers_id(asked.id), read),
    )


def reading(asked: Summary, public_id: str, read: ReadingDetails) -> DocumentReading:
    """Build what answers and extractions have in common."""
    return DocumentReading(
        id=public_id,
        state=asked.state,
        document=ids.document_id(read.document_id),
        length=asked.length,
        chat_template_kwargs=variables_of(asked),
        template=read.template,
        chunk_tokens=asked.chunk_tokens,
        model=asked.model,
        priority=PRIORITY_NAMES[asked.rank],
        plan=asked.plan,
        cancel_requested=asked.stop_reason == "cancel",
        warnings=asked.warnings,
        progress=progress_reply(read.counts),
        usage=usage_reply(read.counts),
        error=asked.error,
        metadata=asked.labels,
        custom_id=asked.custom_id,
        created_at=rfc3339(asked.created_at),
        planned_at=optional_rfc3339(asked.planned_at),
        finalized_at=optional_rfc3339(asked.finalized_at),
        expires_at=optional_rfc3339(asked.expires_at),
    )


def answer_reply(question: str, found: DocumentFinding) -> AnswerReply:
    """Build the public shape of one answer.

    Raises:
        ContentUnreadableError: it cannot be decrypted.
    """
    pages = [found.first_page, found.last_page or found.first_page] if found.first_page is not None else None
    return AnswerReply(
        question=require_readable(question),
        found=None if found.error is not None else found.value is not None,
        answer=require_readable(found.value),
        pages=pages,
        quote=require_readable(found.quote),
        quote_in_text=found.is_quoted,
        start=found.start_char,
        end=found.end_char,
        gaps=found.gaps,  # type: ignore[typeddict-item]  # as `joining` made them
        error=found.error,
    )


def unreadable_reply(question: str, error: ContentUnreadableError) -> AnswerReply:
    """Build the public shape of an answer that cannot be decrypted."""
    return AnswerReply(
        question=shown(question) or "",
        found=None,
        answer=None,
        pages=None,
        quote=None,
        quote_in_text=None,
        start=None,
        end=None,
        gaps=[],
        error=error.as_stored(),
    )
