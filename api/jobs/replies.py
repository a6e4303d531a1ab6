"""Replies about jobs, modelled for the API documentation; `jobs.views` makes the objects."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from api.http.fields import Priority, StateName
from api.http.replies import GoneReply, JobError, ListReply, example, gone_example, page_example
from api.jobs.requests import TaskName, WaitReasonName

_ID = "job_019c2f3e5a4b7c8d9e0f1a2b3c4d5e6f"
_JOB: dict[str, Any] = {
    "id": _ID,
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


class JobReply(BaseModel):
    """A job. Times are RFC 3339 in UTC; tokens are counted with the served model's tokenizer."""

    model_config = example(**_JOB)

    id: str
    object: Literal["job"]
    state: StateName
    task: TaskName
    model: str
    custom_id: str | None
    metadata: dict[str, str]
    priority: Priority
    max_tokens: int
    prompt_tokens: int | None = Field(description="Null until counted.")
    completion_tokens: int = Field(description="Tokens generated so far; final once the job has ended.")
    finish_reason: Literal["stop", "length"] | None
    attempt: int = Field(description="Attempts spent so far.")
    cancel_requested: bool
    error: JobError | None
    created_at: datetime
    started_at: datetime | None
    first_token_at: datetime | None
    finalized_at: datetime | None
    expires_at: datetime | None


_WAITS = {
    "state": "queued",
    "completion_tokens": 0,
    "started_at": None,
    "first_token_at": None,
    "queue": {"position": 3, "reason": "behind", "estimated_start_at": "2026-01-31T12:02:10Z"},
}


class QueueReply(BaseModel):
    """The queue position of a waiting job: an estimate, at most a second old near the head of the queue."""

    position: int | None = Field(
        description="1 is next. Near the head, positions follow the order in which jobs are expected to"
        " start; large and small jobs are packed together, so this is not the order of arrival. From about"
        " the 130th on they follow rank, which is approximate: jobs may share a position. Null when the job"
        " is not in line: `dependency`, `preparing`, `retry_backoff`, `engine_down`, `no_engine_fits`."
    )
    reason: WaitReasonName | None = Field(
        description="What the job waits for; the first reason that applies. `dependency`: other jobs."
        " `preparing`: its tokens are being counted. `retry_backoff`: an attempt failed, and the next one"
        " starts later. `engine_down`: no engine that could hold it was seen in the last 30 s, or all are"
        " paused. `no_engine_fits`: every engine of its model is too small for its prompt and max_tokens."
        " `reservation`: there is room, but it is reserved for a job of higher precedence, which this one"
        " would delay. `slots`: it is next, and all batch slots are taken. `blocks`: it is next or ranks"
        " first, and too few KV-cache blocks are free. `alone`: the same, but it runs only on an idle engine,"
        " because workers crashed while running it. `behind`: other jobs go first. Null: nothing holds it"
        " back, and it starts within about a second."
    )
    estimated_start_at: datetime | None = Field(
        description="Estimated from the measured speed of the engines and the output of similar jobs,"
        " assuming that no job of higher rank arrives. Half of all estimates are within 20 % of the wait, one"
        " in ten is more than 80 % off. Null when no estimate is possible."
    )


class SeenJobReply(JobReply):
    """A job and, while it waits, its queue position."""

    model_config = example(**_JOB | _WAITS)

    queue: QueueReply | None = Field(
        description="Null when the job is running or has ended. Lists, webhooks and other responses omit it,"
        " and the ETag does not cover it."
    )


class JobListReply(ListReply[JobReply]):
    """A page of jobs, newest first."""

    model_config = page_example(_JOB)


class Usage(BaseModel):
    """Tokens of a job."""

    prompt_tokens: int | None = Field(description="Null when the job ended before it was counted.")
    completion_tokens: int
    total_tokens: int


class ResultReply(BaseModel):
    """The result of a job that has ended."""

    model_config = example(
        id=_ID,
        state="completed",
        output="The report finds that …",
        finish_reason="stop",
        usage={"prompt_tokens": 91_377, "completion_tokens": 212, "total_tokens": 91_589},
        error=None,
    )

    id: str
    state: Literal["completed", "failed", "cancelled", "expired"]
    output: str | None = Field(
        description="Partial unless the job completed; null when nothing was generated."
    )
    finish_reason: Literal["stop", "length"] | None
    usage: Usage
    error: JobError | None


class DeletedReply(GoneReply[Literal["job"]]):
    """A job that was deleted."""

    model_config = gone_example(_JOB)


class BulkError(BaseModel):
    """A line that was rejected."""

    line: int = Field(description="Counted from 1, including empty lines.")
    code: str
    message: str
    param: str | None


class BulkReply(BaseModel):
    """The outcome of each line."""

    model_config = example(
        object="bulk",
        accepted=1,
        rejected=1,
        ids=[_ID],
        errors=[
            {
                "line": 2,
                "code": "missing_field",
                "message": "The field 'input' is required.",
                "param": "input",
            }
        ],
    )

    object: Literal["bulk"]
    accepted: int
    rejected: int
    ids: list[str] = Field(description="Ids of the jobs from the accepted lines, in line order.")
    errors: list[BulkError]


class CancelReply(BaseModel):
    """The number of jobs that were cancelled or, if running, asked to stop."""

    model_config = example(object="cancellation", cancelled=17)

    object: Literal["cancellation"]
    cancelled: int
