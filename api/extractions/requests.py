"""Requests about extractions."""

from typing import Any

from pydantic import Field

from api.answers.requests import (
    DocumentEstimateFields,
    DocumentFields,
    DocumentOptions,
    ReadingListQuery,
)
from api.http.fields import example
from api.summaries.requests import PartsTemplate
from jobs.extractions.fields import JOIN_KEYWORD, MAX_FIELDS, MAX_SCHEMA_CHARS
from jobs.extractions.shape import MAX_LENGTH
from jobs.extractions.views import JoinRuleName
from jobs.summaries.own_templates import MAX_TEMPLATE_CHARS

_SCHEMA = {
    "type": "object",
    "properties": {
        "parties": {"type": "array", "items": {"type": "string"}},
        "rent": {"type": "number", "description": "Monthly rent in euros"},
    },
    "required": ["rent"],
}


class ExtractionOptions(DocumentOptions):
    """What to extract, and how; only `schema` is required."""

    fields_schema: dict[str, Any] = Field(
        alias="schema",
        description=f"JSON Schema of an object with 1 to {MAX_FIELDS} properties, the fields; of at most"
        f" {MAX_SCHEMA_CHARS:,} characters. Descriptions are told to the model.",
    )
    joins: dict[str, JoinRuleName] = Field(
        default_factory=dict,
        max_length=MAX_FIELDS,
        description="How what parts of a document say of a field becomes one value. A field that is not named"
        f" has the rule that its schema names as `{JOIN_KEYWORD}`, otherwise `all` for lists, `first` for"
        " objects and values of several types, `most_frequent` for all others.",
    )
    template: PartsTemplate | None = Field(
        None,
        description=f"Your own words for how the fields are asked of a document (`whole`) and of a part"
        f" (`map`), of at most {MAX_TEMPLATE_CHARS:,} characters each; null: ours."
        " `{{fields}}` must be in each: the fields with their schemas, one a line. The form of the reply"
        " stays ours.",
    )
    length: int | None = Field(
        None,
        ge=64,
        le=MAX_LENGTH,
        description="Target length of a reply about all fields with their quotes, in tokens; null: by their"
        " number.",
    )


class ExtractionRequest(ExtractionOptions, DocumentFields):
    """Fields to extract from uploaded documents; only `documents` and `schema` are required."""

    model_config = example(documents=["doc_019c2f3e5a4b7c8d9e0f1a2b3c4d5e6f"], schema=_SCHEMA)


class ExtractionEstimateRequest(ExtractionOptions, DocumentEstimateFields):
    """Extractions to estimate: of documents that are ready, or of given lengths."""

    model_config = example(tokens=[200_000, 4000], schema=_SCHEMA)


class ExtractionListQuery(ReadingListQuery):
    """The extractions to list, and where to start."""

    values: bool = Field(False, description="Include what was found.")
