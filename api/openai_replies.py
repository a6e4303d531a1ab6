"""What callers of the OpenAI-compatible routes get back, described for the documentation."""

from typing import Literal

from pydantic import BaseModel, Field

Seconds = int


class FileReply(BaseModel):
    """A file; times in seconds since 1970."""

    id: str = Field(examples=["file-019c2f3e5a4b7c8d9e0f1a2b3c4d5e6f"])
    object: Literal["file"]
    bytes: int = Field(description="that can be read by now")
    created_at: Seconds
    expires_at: Seconds | None = Field(description="null while it is being written")
    filename: str
    purpose: Literal["batch", "batch_output"]
    status: Literal["uploaded", "processed"] = Field(description="processed once it is complete")
    status_details: None


class FileListReply(BaseModel):
    """A page of files."""

    object: Literal["list"]
    data: list[FileReply]
    first_id: str | None
    last_id: str | None = Field(description="give it as `after` for the next page")
    has_more: bool


class FileDeletedReply(BaseModel):
    """A file that is gone."""

    id: str
    object: Literal["file"]
    deleted: Literal[True]


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

    id: str = Field(examples=["batch_019c2f3e5a4b7c8d9e0f1a2b3c4d5e6f"])
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


class BatchListReply(BaseModel):
    """A page of batches, newest first."""

    object: Literal["list"]
    data: list[BatchReply]
    first_id: str | None
    last_id: str | None = Field(description="give it as `after` for the next page")
    has_more: bool
