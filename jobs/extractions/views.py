"""The public shapes of extractions, in replies and in webhooks."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import TypedDict

from jobs import ids
from jobs.database.base import JsonObject
from jobs.models import DocumentFinding, Summary
from jobs.questions.views import AnswerGapReply, DocumentReading, ReadingDetails, reading
from jobs.sealing.content import require_readable, shown
from jobs.states.summary import JoinRule, Purpose, SummaryState
from jobs.validation import choice, documented_as

JoinRuleName = Annotated[str, choice(JoinRule)]


class SourceReply(TypedDict):
    """The words that a part of the document says a value with."""

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
    pages: Annotated[
        Sequence[int] | None,
        Field(
            description="First and last page: of the quote if it is in the text, otherwise of the part."
            " Null: no pages."
        ),
    ]


class FieldReply(TypedDict):
    """What the document says of one field."""

    field: str
    found: bool
    value: Annotated[Any, Field(description="By the schema of the field; null unless `found`.")]
    sources: Annotated[
        Sequence[SourceReply],
        Field(description="Of each part of the document that says the value, in order; at most 100."),
    ]


class PartTemplatesReply(TypedDict):
    """Names and versions of the prompt templates; of your own `custom-` and a hash. Rules join."""

    whole: str
    map: str


class ExtractionObject(DocumentReading):
    """The extraction of one document as JSON."""

    object: Literal["extraction"]
    templates: Annotated[JsonObject, documented_as(PartTemplatesReply)]
    schema: Annotated[JsonObject, Field(description="As requested.")]
    joins: Annotated[dict[str, JoinRuleName], Field(description="The rule of each field.")]
    valid: Annotated[
        bool | None, Field(description="Whether the values are valid by the schema; null unless completed.")
    ]
    fault: Annotated[str | None, Field(description="Why they are not valid; null: they are.")]
    gaps: Annotated[Sequence[AnswerGapReply], Field(description="Parts that could not be read.")]


class ExtractionWithValues(ExtractionObject):
    """The same with what was found; nothing before it has ended."""

    values: Annotated[
        JsonObject | None,
        Field(
            description="The values by field. What the document does not say is null where its schema takes"
            " null, otherwise absent. Null unless completed, and in a list if they cannot be decrypted: see"
            " `error`."
        ),
    ]
    fields: Annotated[Sequence[FieldReply], Field(description="Each field with its sources, in order.")]


def extraction_object(asked: Summary, read: ReadingDetails) -> ExtractionObject:
    """Build the public shape of a document's extraction."""
    schema, joins = shown(asked.schema), shown(asked.joins)
    return ExtractionObject(
        object=Purpose.EXTRACTION.value,
        templates=asked.templates,
        schema=schema or {},
        joins=joins or {},  # type: ignore[typeddict-item]  # as `lifecycle` wrote them
        valid=asked.fault is None if asked.state == SummaryState.COMPLETED else None,
        fault=shown(asked.fault),
        # Before it has ended they are none, and those of a document without a text are its error.
        gaps=asked.gaps if asked.planned_at else [],  # type: ignore[typeddict-item]  # as `joining` made them
        **reading(asked, ids.extraction_id(asked.id), read),
    )


def field_reply(name: str, found: DocumentFinding) -> FieldReply:
    """Build the public shape of one field's value.

    Raises:
        ContentUnreadableError: it cannot be decrypted.
    """
    value, sources = require_readable(found.value), require_readable(found.sources)
    return FieldReply(
        field=name,
        found=value is not None,
        value=value,
        sources=sources or [],  # type: ignore[typeddict-item]  # as `joining` made them
    )
