"""Replies about answers, modelled for the API documentation."""

from typing import Annotated, Any, Literal, NotRequired

from pydantic import BaseModel, Field, with_config

from api.http.fields import example
from api.http.replies import DeletionReply, ListReply, gone_example, page_example
from api.summaries.replies import CompletionTokensReply, EstimatedDocumentReply
from jobs.questions.views import AnswerReply, AnswersObject

_ID = "ans_019c2f3e5a4b7c8d9e0f1a2b3c4d5e6f"
_DOCUMENT = "doc_019c2f3e5a4b7c8d9e0f1a2b3c4d5e6f"
_QUESTIONS = ["What is the notice period?", "Who pays for repairs?"]
_ANSWERS: dict[str, Any] = {
    "id": _ID,
    "object": "answers",
    "state": "completed",
    "document": _DOCUMENT,
    "questions": _QUESTIONS,
    "length": 256,
    "chat_template_kwargs": {},
    "template": None,
    "chunk_tokens": None,
    "model": "llama-3.1-8b-instruct",
    "priority": "normal",
    "templates": {"whole": "answer-whole-1", "map": "answer-map-1", "reduce": "answer-reduce-1"},
    "plan": None,
    "cancel_requested": False,
    "warnings": [],
    "progress": {
        "jobs": 2,
        "completed": 2,
        "failed": 0,
        "running": 0,
        "tokens_done": 60_410,
        "tokens_total": 60_410,
    },
    "usage": {"prompt_tokens": 60_410, "cached_tokens": 30_080, "completion_tokens": 96},
    "error": None,
    "metadata": {},
    "custom_id": None,
    "created_at": "2026-01-31T12:00:00.123456Z",
    "planned_at": "2026-01-31T12:00:01.000000Z",
    "finalized_at": "2026-01-31T12:01:00.000000Z",
    "expires_at": None,
}
_EACH: list[dict[str, Any]] = [
    {
        "question": _QUESTIONS[0],
        "found": True,
        "answer": "Three months to the end of a quarter.",
        "pages": [4, 4],
        "quote": "notice period is three months",
        "quote_in_text": True,
        "start": 9_204,
        "end": 9_233,
        "gaps": [],
        "error": None,
    },
    {
        "question": _QUESTIONS[1],
        "found": False,
        "answer": None,
        "pages": None,
        "quote": None,
        "quote_in_text": None,
        "start": None,
        "end": None,
        "gaps": [],
        "error": None,
    },
]


@with_config(example(**_ANSWERS))
class AnswersSummaryReply(AnswersObject):
    """A document's answers, without the answers themselves."""


@with_config(example(**_ANSWERS, answers=_EACH))
class AnswersWithEachReply(AnswersObject):
    """A document's answers, which `answers=false` omits."""

    answers: NotRequired[
        Annotated[
            list[AnswerReply], Field(description="In the order of the questions; empty before it has ended.")
        ]
    ]


class AnswersListReply(ListReply[AnswersSummaryReply]):
    """A page of answers, newest first; or those that one request made, in the order of its documents."""

    model_config = page_example(_ANSWERS)

    first_id: str | None = None
    last_id: str | None = None


class AnswersEstimateReply(BaseModel):
    """What a request for answers would take."""

    model_config = example(
        object="answers.estimate",
        chunks=15,
        levels=2,
        jobs=32,
        prompt_tokens=420_824,
        read_tokens=211_204,
        completion_tokens={"expected": 8192, "max": 10_240},
        chunk_tokens=15_578,
        is_exact=True,
        estimated_seconds=96,
        documents=[{"id": _DOCUMENT, "tokens": 200_019, "chunks": 15, "levels": 2, "jobs": 32}],
    )

    object: Literal["answers.estimate"]
    chunks: int
    levels: int = Field(description="Levels of the highest tree.")
    jobs: int
    prompt_tokens: int = Field(description="Expected, as quotas count them; upper bounds for joins.")
    read_tokens: int = Field(
        description="Of these, what is left to compute on engines that reuse prefixes: each part once."
    )
    completion_tokens: CompletionTokensReply
    chunk_tokens: int = Field(description="Maximum per part.")
    is_exact: bool = Field(
        description="True: the documents were really cut; false: parts are computed from lengths."
    )
    estimated_seconds: int | None = Field(description="After all jobs queued now; null: no engine runs.")
    documents: list[EstimatedDocumentReply]


class DeletedAnswersReply(DeletionReply[Literal["answers"]]):
    """Answers that were deleted."""

    model_config = gone_example(_ANSWERS)
