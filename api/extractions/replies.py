"""Replies about extractions, modelled for the API documentation."""

from typing import Annotated, Any, Literal, NotRequired

from pydantic import BaseModel, Field, with_config

from api.http.fields import example
from api.http.replies import DeletionReply, ListReply, gone_example, page_example
from api.summaries.replies import CompletionTokensReply, EstimatedDocumentReply
from jobs.database.base import JsonObject
from jobs.extractions.views import ExtractionObject, FieldReply

_ID = "ext_019c2f3e5a4b7c8d9e0f1a2b3c4d5e6f"
_DOCUMENT = "doc_019c2f3e5a4b7c8d9e0f1a2b3c4d5e6f"
_EXTRACTION: dict[str, Any] = {
    "id": _ID,
    "object": "extraction",
    "state": "completed",
    "document": _DOCUMENT,
    "schema": {
        "type": "object",
        "properties": {"rent": {"type": "number"}, "notice": {"type": ["string", "null"]}},
        "required": ["rent"],
    },
    "joins": {"rent": "most_frequent", "notice": "most_frequent"},
    "valid": True,
    "fault": None,
    "gaps": [],
    "length": 256,
    "chat_template_kwargs": {},
    "template": None,
    "chunk_tokens": None,
    "model": "llama-3.1-8b-instruct",
    "priority": "normal",
    "templates": {"whole": "extraction-whole-1", "map": "extraction-map-1"},
    "plan": None,
    "cancel_requested": False,
    "warnings": [],
    "progress": {
        "jobs": 1,
        "completed": 1,
        "failed": 0,
        "running": 0,
        "tokens_done": 30_410,
        "tokens_total": 30_410,
    },
    "usage": {"prompt_tokens": 30_410, "cached_tokens": 0, "completion_tokens": 96},
    "error": None,
    "metadata": {},
    "custom_id": None,
    "created_at": "2026-01-31T12:00:00.123456Z",
    "planned_at": "2026-01-31T12:00:01.000000Z",
    "finalized_at": "2026-01-31T12:01:00.000000Z",
    "expires_at": None,
}
_VALUES: dict[str, Any] = {
    "values": {"rent": 900, "notice": None},
    "fields": [
        {
            "field": "rent",
            "found": True,
            "value": 900,
            "sources": [
                {
                    "quote": "The monthly rent is 900 euros",
                    "quote_in_text": True,
                    "start": 9_204,
                    "end": 9_233,
                    "pages": [4, 4],
                }
            ],
        },
        {"field": "notice", "found": False, "value": None, "sources": []},
    ],
}
_Values = Annotated[
    JsonObject | None,
    Field(
        description="The values by field. What the document does not say is null where its schema takes null,"
        " otherwise absent. Null unless completed; left out by `values=false`."
    ),
]
_Fields = Annotated[
    list[FieldReply], Field(description="Each field with its sources; left out by `values=false`.")
]


@with_config(example(**_EXTRACTION))
class ExtractionReply(ExtractionObject):
    """A document's extraction, without what was found."""


@with_config(example(**_EXTRACTION, **_VALUES))
class ExtractionWithValuesReply(ExtractionObject):
    """A document's extraction."""

    values: NotRequired[_Values]
    fields: NotRequired[_Fields]


class ExtractionListReply(ListReply[ExtractionWithValuesReply]):
    """A page of extractions, newest first; or those that one request made, in the order of its documents."""

    model_config = page_example(_EXTRACTION)

    first_id: str | None = None
    last_id: str | None = None


class ExtractionEstimateReply(BaseModel):
    """What a request for extractions would take."""

    model_config = example(
        object="extraction.estimate",
        chunks=15,
        levels=1,
        jobs=15,
        prompt_tokens=210_824,
        completion_tokens={"expected": 3840, "max": 4800},
        chunk_tokens=15_578,
        is_exact=True,
        estimated_seconds=96,
        documents=[{"id": _DOCUMENT, "tokens": 200_019, "chunks": 15, "levels": 1, "jobs": 15}],
    )

    object: Literal["extraction.estimate"]
    chunks: int
    levels: Literal[1] = Field(description="Nothing but rules joins the parts.")
    jobs: int
    prompt_tokens: int = Field(description="Expected, as quotas count them.")
    completion_tokens: CompletionTokensReply
    chunk_tokens: int = Field(description="Maximum per part.")
    is_exact: bool = Field(
        description="True: the documents were really cut; false: parts are computed from lengths."
    )
    estimated_seconds: int | None = Field(description="After all jobs queued now; null: no engine runs.")
    documents: list[EstimatedDocumentReply]


class DeletedExtractionReply(DeletionReply[Literal["extraction"]]):
    """An extraction that was deleted."""

    model_config = gone_example(_EXTRACTION)
