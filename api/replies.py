"""What callers get back, described for the API's documentation; `jobs.views` makes the job objects."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from api.schemas import Priority, StateName
from jobs.prompts import Task

_JOB_EXAMPLE: dict[str, Any] = {
    "id": "job_019c2f3e5a4b7c8d9e0f1a2b3c4d5e6f",
    "object": "job",
    "state": "running",
    "task": "summarize",
    "model": "llama-3.1-8b-instruct",
    "custom_id": "report-2026-01",
    "metadata": {"team": "research"},
    "priority": "normal",
    "max_tokens": 512,
    "prompt_tokens": 91_377,
    "completion_tokens": 38,
    "finish_reason": None,
    "attempt": 0,
    "cancel_requested": False,
    "error": None,
    "created_at": "2026-01-31T12:00:00.123456Z",
    "started_at": "2026-01-31T12:00:02.500000Z",
    "first_token_at": "2026-01-31T12:00:31.000000Z",
    "finalized_at": None,
    "expires_at": "2026-02-01T12:00:00.123456Z",
}


class JobError(BaseModel):
    """Why a job failed."""

    code: str = Field(examples=["context_length_exceeded"])
    message: str
    details: dict[str, Any] | None = Field(None, description="numbers that belong to the code")


class JobReply(BaseModel):
    """A job; times are RFC 3339 in UTC, tokens are counted with the served model's tokenizer."""

    model_config = {"json_schema_extra": {"examples": [_JOB_EXAMPLE]}}

    id: str
    object: Literal["job"]
    state: StateName
    task: Task
    model: str
    custom_id: str | None
    metadata: dict[str, str]
    priority: Priority
    max_tokens: int
    prompt_tokens: int | None = Field(description="null until counted")
    completion_tokens: int = Field(description="so far while it runs, final afterwards")
    finish_reason: Literal["stop", "length"] | None
    attempt: int = Field(description="attempts spent so far")
    cancel_requested: bool
    error: JobError | None
    created_at: datetime
    started_at: datetime | None
    first_token_at: datetime | None
    finalized_at: datetime | None
    expires_at: datetime | None


class JobListReply(BaseModel):
    """A page of jobs, newest first."""

    object: Literal["list"]
    data: list[JobReply]
    first_id: str | None
    last_id: str | None = Field(description="give it as `after` for the next page")
    has_more: bool


class Usage(BaseModel):
    """Tokens of a job."""

    prompt_tokens: int | None = Field(description="null when the job ended before it was counted")
    completion_tokens: int
    total_tokens: int


class ResultReply(BaseModel):
    """What a finished job produced."""

    id: str
    state: Literal["completed", "failed", "cancelled", "expired"]
    output: str | None = Field(description="partial unless completed; null when nothing was generated")
    finish_reason: Literal["stop", "length"] | None
    usage: Usage
    error: JobError | None


class DeletedReply(BaseModel):
    """A job that is gone."""

    id: str
    object: Literal["job"]
    deleted: Literal[True]


class BulkError(BaseModel):
    """A line that was not accepted; the others were."""

    line: int = Field(description="counted from 1, empty lines included")
    code: str
    message: str
    param: str | None


class BulkReply(BaseModel):
    """What became of the lines."""

    object: Literal["bulk"]
    accepted: int
    rejected: int
    ids: list[str] = Field(description="of the accepted lines, in their order")
    errors: list[BulkError]


class CancelReply(BaseModel):
    """How many jobs were cancelled, or, when they ran, asked to stop."""

    object: Literal["cancellation"]
    cancelled: int


class ErrorBody(BaseModel):
    """What went wrong."""

    message: str = Field(examples=["max_tokens: Input should be greater than or equal to 1"])
    type: Literal["invalid_request_error", "server_error"]
    param: str | None = Field(description="dotted name of the wrong field", examples=["max_tokens"])
    code: str = Field(examples=["invalid_value"])


class ErrorReply(BaseModel):
    """The one shape of every error."""

    error: ErrorBody


class ComponentReply(BaseModel):
    """Whether a part of the service works."""

    ready: bool
    detail: str


class ReadyReply(BaseModel):
    """Whether jobs can be accepted and run, part by part."""

    ready: bool
    components: dict[Literal["database", "broker", "triton", "tokenizer"], ComponentReply]
