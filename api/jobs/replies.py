"""Replies about jobs, modelled for the API documentation; `jobs.views` makes the objects."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, with_config
from typing_extensions import TypedDict

from api.http.fields import example
from api.http.replies import (
    IF_TOLD,
    ChatLogProbs,
    DeletionReply,
    ListReply,
    PromptDetails,
    ToolCallReply,
    gone_example,
    page_example,
)
from api.jobs.tensors import EngineOutputReply
from jobs.states import AttemptOutcome
from jobs.validation import choice
from jobs.views import FinishReasonName, JobError, JobObject, JobWithQueueObject, Moment

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
    "cached_tokens": None,
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


@with_config(example(**_JOB))
class JobReply(JobObject):
    """A job. Times are RFC 3339 in UTC; tokens are counted with the served model's tokenizer."""


_WAITS = {
    "state": "queued",
    "completion_tokens": 0,
    "started_at": None,
    "first_token_at": None,
    "queue": {
        "position": 3,
        "reason": "behind",
        "estimated_start_at": "2026-01-31T12:02:10Z",
        "detail": None,
    },
}


@with_config(example(**_JOB | _WAITS))
class JobWithQueueReply(JobWithQueueObject):
    """A job and, while it waits, its queue position."""


class JobListReply(ListReply[JobReply]):
    """A page of jobs, newest first."""

    model_config = page_example(_JOB)


_ATTEMPT: dict[str, Any] = {
    "id": "att_019c2f3e6b5c7d8e9f0a1b2c3d4e5f60",
    "object": "attempt",
    "engine": "engine-1",
    "worker": None,
    "outcome": "retried",
    "error_code": "engine_timeout",
    "started_at": "2026-01-31T12:00:02.500000Z",
    "first_token_at": "2026-01-31T12:00:31.000000Z",
    "ended_at": "2026-01-31T12:05:31.000000Z",
    "prompt_tokens": 91_377,
    "cached_tokens": 0,
    "completion_tokens": 38,
    "blocks": 1_436,
}


class AttemptReply(BaseModel):
    """One run of a job on an engine."""

    model_config = example(**_ATTEMPT)

    id: str = Field(description="The hex digits after `att_` are the id of its request on the engine.")
    object: Literal["attempt"]
    engine: str
    worker: str | None = Field(
        description="Host and process id. Null unless the key has the scope `operator`, and if unknown."
    )
    outcome: Annotated[str, choice(AttemptOutcome)] | None = Field(
        description="How it ended. `completed`, `failed`, `cancelled`, `expired`: and with it the job."
        " `retried`: it failed, and spent one of the job's attempts; the others spent none. `released`: its"
        " worker stopped, or its engine could not take it. `recounted`: the prompt was not as long as"
        " counted. `preempted`: it made room for an interactive job. `yielded`: it made room for jobs beside"
        " it. `lost`: its worker or engine was lost. Null while it runs."
    )
    error_code: str | None = Field(description="Of the error that ended it; null: none did.")
    started_at: Moment
    first_token_at: Moment | None
    ended_at: Moment | None = Field(description="When its end was recorded. Null while it runs.")
    prompt_tokens: int
    cached_tokens: int | None = Field(
        description="Prompt tokens that the engine had in its cache, if this was the first to get the job."
        " Null: the engine did not tell."
    )
    completion_tokens: int | None = Field(
        description="Tokens that this run generated; the next one goes on after those that were saved. Null:"
        " unknown."
    )
    blocks: int | None = Field(description="KV-cache blocks reserved for it at its end. Null: unknown.")


class AttemptListReply(ListReply[AttemptReply]):
    """The runs of a job, oldest first."""

    model_config = page_example(_ATTEMPT)


class JobTokenDetails(BaseModel):
    """Generated tokens of a job by kind."""

    reasoning_tokens: int = Field(description="Tokens of thinking, its tags included.")


class Usage(BaseModel):
    """Tokens of a job."""

    prompt_tokens: int | None = Field(description="Null when the job ended before it was counted.")
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails | None = IF_TOLD
    completion_tokens_details: JobTokenDetails


class ResultReply(BaseModel):
    """The result of a job that has ended."""

    model_config = example(
        id=_ID,
        state="completed",
        output="The report finds that …",
        finish_reason="stop",
        reasoning_content=None,
        tool_calls=None,
        usage={
            "prompt_tokens": 91_377,
            "completion_tokens": 212,
            "total_tokens": 91_589,
            "prompt_tokens_details": {"cached_tokens": 91_328},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
        error=None,
        logprobs=None,
        engine_outputs=None,
        embedding=None,
    )

    id: str
    state: Literal["completed", "failed", "cancelled", "expired"]
    output: str | None = Field(
        description="Partial unless the job completed; null when nothing was generated."
    )
    reasoning_content: str | None = Field(
        description="What the model thought before the output, without its tags; null: nothing."
    )
    tool_calls: list[ToolCallReply] | None = Field(
        description="The functions that the answer calls, in OpenAI's form; null: none."
    )
    finish_reason: FinishReasonName | None
    usage: Usage
    error: JobError | None
    logprobs: ChatLogProbs | None = Field(
        description="Of the output's tokens; null: the job did not ask for them."
    )
    engine_outputs: dict[str, EngineOutputReply | None] | None = Field(
        description="The tensors of a completed job's `engine_outputs`, by name; a null one: the engine sent"
        " none, or its file was deleted. Null: the job did not ask for any, or did not complete."
    )
    embedding: list[float] | None = Field(
        description="The vector of the input, of a job for embeddings; otherwise null."
    )


class DeletedReply(DeletionReply[Literal["job"]]):
    """A job that was deleted."""

    model_config = gone_example(_JOB)


class BulkError(TypedDict):
    """A line that was rejected."""

    line: Annotated[int, Field(description="Counted from 1, including empty lines.")]
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
