"""What callers get back about jobs, described for the documentation; `jobs.views` makes the objects."""

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
    """A job; times are RFC 3339 in UTC, tokens are counted with the served model's tokenizer."""

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


_WAITS = {
    "state": "queued",
    "completion_tokens": 0,
    "started_at": None,
    "first_token_at": None,
    "queue": {"position": 3, "reason": "behind", "estimated_start_at": "2026-01-31T12:02:10Z"},
}


class QueueReply(BaseModel):
    """Where a job stands that waits. It is an estimate, a second old at most near the head of the queue."""

    position: int | None = Field(
        description="1 is next. Near the head in the order in which jobs are expected to start: large and"
        " small ones are packed together, so this is not the order of arrival. From about the 130th on by"
        " rank, which is approximate: some may share a place. null when it is not in line: `dependency`,"
        " `preparing`, `retry_backoff`, `engine_down`, `no_engine_fits`."
    )
    reason: WaitReasonName | None = Field(
        description="What it waits for; the first that applies. `dependency`: other jobs. `preparing`: its"
        " tokens are being counted. `retry_backoff`: an attempt failed, the next is made later."
        " `engine_down`: no engine that could hold it was seen in the last 30 s, or all are paused."
        " `no_engine_fits`: every engine of its model is too small for prompt and max_tokens."
        " `reservation`: there is room, but it is kept for a job with a better right to it, which this one"
        " would postpone. `slots`: it is next, and all batch slots are taken. `blocks`: it is next or ranks"
        " first, and too few KV-cache blocks are free. `alone`: the same, but it runs only on an idle engine,"
        " since workers were lost with it. `behind`: others go first. null: nothing holds it back, it starts"
        " within a second or so."
    )
    estimated_start_at: datetime | None = Field(
        description="From the measured speed of the engines and what similar jobs generated, if nobody with"
        " a better rank arrives. Half of all estimates are within 20 % of the wait, one in ten is over"
        " 80 % off. null when nothing can be said."
    )


class SeenJobReply(JobReply):
    """A job and, while it waits, its place in the queue."""

    model_config = example(**_JOB | _WAITS)

    queue: QueueReply | None = Field(
        description="null when the job runs or has ended; lists, webhooks and other answers do not have it."
        " Outside the ETag."
    )


class JobListReply(ListReply[JobReply]):
    """A page of jobs, newest first."""

    model_config = page_example(_JOB)


class Usage(BaseModel):
    """Tokens of a job."""

    prompt_tokens: int | None = Field(description="null when the job ended before it was counted")
    completion_tokens: int
    total_tokens: int


class ResultReply(BaseModel):
    """What a finished job produced."""

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
    output: str | None = Field(description="partial unless completed; null when nothing was generated")
    finish_reason: Literal["stop", "length"] | None
    usage: Usage
    error: JobError | None


class DeletedReply(GoneReply[Literal["job"]]):
    """A job that is gone."""

    model_config = gone_example(_JOB)


class BulkError(BaseModel):
    """A line that was not accepted; the others were."""

    line: int = Field(description="counted from 1, empty lines included")
    code: str
    message: str
    param: str | None


class BulkReply(BaseModel):
    """What became of the lines."""

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
    ids: list[str] = Field(description="of the accepted lines, in their order")
    errors: list[BulkError]


class CancelReply(BaseModel):
    """How many jobs were cancelled, or, when they ran, asked to stop."""

    model_config = example(object="cancellation", cancelled=17)

    object: Literal["cancellation"]
    cancelled: int
