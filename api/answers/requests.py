"""Requests about answers."""

from typing import Annotated, Final

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from api.http.fields import example
from api.summaries.requests import (
    MAX_CHUNK_TOKENS,
    MAX_DOCUMENTS,
    MAX_ESTIMATED_TOKENS,
    DocumentId,
    SummaryListQuery,
    TreeTemplate,
)
from jobs.questions.forest import DEFAULT_LENGTH
from jobs.summaries.own_templates import MAX_TEMPLATE_CHARS
from jobs.validation import Closed, CompletionWindow, CustomId, Metadata, NonEmpty, TemplateVariables
from jobs.views import Priority

MAX_QUESTIONS: Final = 100
MAX_QUESTION_CHARS: Final = 2000
# Kept with each document's row; a request may name a thousand documents.
MAX_QUESTIONS_CHARS: Final = 20_000
MAX_ANSWER_TOKENS: Final = 4096


def _bounded(questions: list[str]) -> list[str]:
    num_chars = sum(map(len, questions))
    if num_chars > MAX_QUESTIONS_CHARS:
        fields = {"most": MAX_QUESTIONS_CHARS, "num": num_chars}
        message = "must not exceed {most} characters in all; these have {num}."
        raise PydanticCustomError("questions", message, fields)
    for place, question in enumerate(questions):
        if question in questions[:place]:
            message = "must name each question once; the one at {place} repeats another."
            raise PydanticCustomError("questions", message, {"place": place})
    return questions


Question = Annotated[NonEmpty, Field(max_length=MAX_QUESTION_CHARS)]
Questions = Annotated[list[Question], Field(min_length=1, max_length=MAX_QUESTIONS), AfterValidator(_bounded)]


class DocumentOptions(Closed):
    """How documents are read, each apart; every field has a default."""

    chat_template_kwargs: TemplateVariables | None = Field(
        None,
        description="Variables for the model's chat template in every prompt, such as `enable_thinking`; one"
        " that the template does not know has no effect.",
    )
    chunk_tokens: int | None = Field(
        None,
        ge=64,
        le=MAX_CHUNK_TOKENS,
        description="Longer documents are cut into parts of at most so many tokens; null: those that fit no"
        " engine, into parts that pack it best.",
    )
    model: NonEmpty | None = Field(None, description="Null: the served model.")


class DocumentFields(DocumentOptions):
    """Which documents are read, and what becomes of it; only `documents` is required."""

    documents: list[DocumentId] = Field(
        default_factory=list, max_length=MAX_DOCUMENTS, description="1 to 1000 document ids, each once."
    )
    priority: Priority = Field("normal", description="Order among your own jobs.")
    custom_id: CustomId | None = Field(None, description="Your own name for it; need not be unique.")
    metadata: Metadata | None = Field(None, description="Key-value pairs kept with the result.")
    completion_window: CompletionWindow | None = Field(
        None, description="What has not ended after it expires; null: never."
    )
    webhook_url: NonEmpty | None = Field(
        None, description="Notified once the reading of a document has ended; https only."
    )
    webhook_secret: NonEmpty | None = Field(
        None, description="`whsec_…`, signs deliveries; null: your default secret."
    )


class DocumentEstimateFields(DocumentOptions):
    """Of what to estimate the reading: of documents that are ready, or of given lengths."""

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


class ReadingListQuery(SummaryListQuery):
    """What to list of what was made of documents, and where to start."""

    document: str | None = Field(None, description="Only of this document.")


class AnswersOptions(DocumentOptions):
    """What to ask, and how; only `questions` is required."""

    questions: Questions = Field(
        description=f"1 to {MAX_QUESTIONS} questions to each document, each once, of at most"
        f" {MAX_QUESTION_CHARS:,} characters and {MAX_QUESTIONS_CHARS:,} in all.",
    )
    template: TreeTemplate | None = Field(
        None,
        description=f"Your own words for how the question is put to a document (`whole`), to a part (`map`)"
        f" and for joining what parts say (`reduce`), of at most {MAX_TEMPLATE_CHARS:,} characters each;"
        " null: ours. `{{question}}` must be in each; `{{words}}` is the length. The form of the reply stays"
        " ours.",
    )
    length: int = Field(
        DEFAULT_LENGTH,
        ge=64,
        le=MAX_ANSWER_TOKENS,
        description="Target length of an answer with its quote, in tokens.",
    )


class AnswersRequest(AnswersOptions, DocumentFields):
    """Questions to uploaded documents; only `documents` and `questions` are required."""

    model_config = example(
        documents=["doc_019c2f3e5a4b7c8d9e0f1a2b3c4d5e6f"],
        questions=["Who are the parties?", "What is the notice period?"],
    )


class AnswersEstimateRequest(AnswersOptions, DocumentEstimateFields):
    """Answers to estimate: of documents that are ready, or of given lengths."""

    model_config = example(tokens=[200_000, 4000], questions=["What is the notice period?"])
