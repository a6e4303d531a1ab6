"""Replies about batches, modelled for the API documentation."""

from typing import Any, Literal

from pydantic import BaseModel, Field, with_config

from api.http.fields import Seconds, example
from api.http.replies import ErrorBody, ListReply, page_example
from jobs.batches.views import BatchErrors, BatchObject, EndpointName

_FILE_ID = "file-019c2f3e5a4b7c8d9e0f1a2b3c4d5e6f"
_BATCH_ID = "batch_019c2f3e5a4b7c8d9e0f1a2b3c4d5e70"
_BATCH: dict[str, Any] = {
    "id": _BATCH_ID,
    "object": "batch",
    "endpoint": "/v1/chat/completions",
    "model": "llama-3.1-8b-instruct",
    "errors": None,
    "input_file_id": _FILE_ID,
    "completion_window": "24h",
    "status": "in_progress",
    "output_file_id": "file-019c2f3e5a4b7c8d9e0f1a2b3c4d5e71",
    "error_file_id": None,
    "created_at": 1769860810,
    "in_progress_at": 1769860811,
    "expires_at": 1769947210,
    "finalizing_at": None,
    "completed_at": None,
    "failed_at": None,
    "expired_at": None,
    "cancelling_at": None,
    "cancelled_at": None,
    "request_counts": {"total": 100, "completed": 12, "failed": 0},
    "usage": {
        "input_tokens": 120_000,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 6144,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 126_144,
    },
    "metadata": {"team": "research"},
    "retry_of": None,
    "error_counts": {},
}


@with_config(example(**_BATCH))
class BatchReply(BatchObject):
    """A batch. Times are seconds since 1970."""


class RefusedLine(BaseModel):
    """A line that would fail without failing the batch."""

    line: int
    custom_id: str
    error: ErrorBody


class OversizedLine(BaseModel):
    """A line too large for every engine; only it would fail, with `context_length_exceeded`."""

    line: int
    custom_id: str
    prompt_tokens: int
    max_tokens: int
    limit: int


class EstimateCounts(BaseModel):
    """Lines by expected outcome."""

    total: int
    runnable: int
    refused: int
    never_fit: int
    faulty: int = Field(description="Any of these would fail the whole batch.")


class EstimateReply(BaseModel):
    """What a batch would take. Lists the first hundred refused, faulty and oversized lines each."""

    model_config = example(
        object="batch.estimate",
        input_file_id=_FILE_ID,
        endpoint="/v1/chat/completions",
        request_counts={"total": 100, "runnable": 100, "refused": 0, "never_fit": 0, "faulty": 0},
        prompt_tokens=1_200_000,
        max_output_tokens=51_200,
        kv_blocks=19_600,
        is_exact=True,
        refused=[],
        never_fit=[],
        errors={"object": "list", "data": []},
        estimated_seconds=840,
        estimated_finish_at=1769861650,
    )

    object: Literal["batch.estimate"]
    input_file_id: str
    endpoint: EndpointName
    request_counts: EstimateCounts
    prompt_tokens: int
    max_output_tokens: int
    kv_blocks: int = Field(description="Of all runnable lines, if they ran at once.")
    is_exact: bool = Field(description="False: the file is so large that part of it was estimated by length.")
    refused: list[RefusedLine]
    never_fit: list[OversizedLine]
    errors: BatchErrors
    estimated_seconds: int | None = Field(
        description="After all jobs queued now, if every answer has its maximum length; null: no engine runs."
    )
    estimated_finish_at: Seconds | None


class BatchListReply(ListReply[BatchReply]):
    """A page of batches, newest first."""

    model_config = page_example(_BATCH)
