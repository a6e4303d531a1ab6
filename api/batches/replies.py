"""What callers get back about batches, described for the documentation."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from api.http.fields import Seconds
from api.http.replies import ErrorBody, ListReply, example, page_example

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
}


class LineFault(BaseModel):
    """Why a batch was refused."""

    code: str = Field(examples=["invalid_json_line"])
    line: int | None = Field(description="counted from 1; null: the whole file")
    message: str
    param: str | None


class BatchErrors(BaseModel):
    """Everything for which a batch was refused; in lists the first hundred."""

    object: Literal["list"]
    data: list[LineFault]


class RequestCounts(BaseModel):
    """Lines of a batch; 0 while it is validated. Cancelled and expired lines are in neither count."""

    total: int
    completed: int
    failed: int


class CachedTokens(BaseModel):
    """Part of the input tokens."""

    cached_tokens: int


class ReasoningTokens(BaseModel):
    """Part of the output tokens."""

    reasoning_tokens: int


class BatchUsage(BaseModel):
    """Tokens of the completed lines."""

    input_tokens: int
    input_tokens_details: CachedTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class BatchReply(BaseModel):
    """A batch; times in seconds since 1970."""

    model_config = example(**_BATCH)

    id: str
    object: Literal["batch"]
    endpoint: Literal["/v1/chat/completions", "/v1/completions"]
    model: str | None
    errors: BatchErrors | None
    input_file_id: str
    completion_window: Literal["1h", "24h", "7d"]
    status: Literal[
        "validating",
        "failed",
        "in_progress",
        "finalizing",
        "completed",
        "expired",
        "cancelling",
        "cancelled",
    ]
    output_file_id: str | None = Field(description="from the first completed line on; grows until the end")
    error_file_id: str | None = Field(description="from the first failed line on; grows until the end")
    created_at: Seconds
    in_progress_at: Seconds | None
    expires_at: Seconds
    finalizing_at: Seconds | None
    completed_at: Seconds | None
    failed_at: Seconds | None
    expired_at: Seconds | None
    cancelling_at: Seconds | None
    cancelled_at: Seconds | None
    request_counts: RequestCounts
    usage: BatchUsage
    metadata: dict[str, str] | None
    retry_of: str | None = Field(description="the batch whose failed lines these are")


class RefusedLine(BaseModel):
    """A line that would fail alone."""

    line: int
    custom_id: str
    error: ErrorBody


class NeverFitLine(BaseModel):
    """A line that no engine can hold; it would fail alone with `context_length_exceeded`."""

    line: int
    custom_id: str
    prompt_tokens: int
    max_tokens: int
    limit: int


class EstimateCounts(BaseModel):
    """Lines by what would become of them."""

    total: int
    runnable: int
    refused: int
    never_fit: int
    faulty: int = Field(description="any of them would fail the whole batch")


class EstimateReply(BaseModel):
    """What a batch would take; of refused, faulty and never fitting lines the first hundred are listed."""

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
    endpoint: Literal["/v1/chat/completions", "/v1/completions"]
    request_counts: EstimateCounts
    prompt_tokens: int
    max_output_tokens: int
    kv_blocks: int = Field(description="of all runnable lines together, were they to run at once")
    is_exact: bool = Field(description="false: the file is so large that part of it was counted by length")
    refused: list[RefusedLine]
    never_fit: list[NeverFitLine]
    errors: BatchErrors
    estimated_seconds: int | None = Field(
        description="behind what is queued now, were every answer as long as it may; null: no engine runs"
    )
    estimated_finish_at: Seconds | None


class BatchListReply(ListReply[BatchReply]):
    """A page of batches, newest first."""

    model_config = page_example(_BATCH)
