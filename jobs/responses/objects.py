"""Responses as callers see them: OpenAI's object, made of a job, its result and what its request said."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Self
from uuid import UUID

from jobs import ids
from jobs.answers import log_probs
from jobs.database.base import JsonObject
from jobs.live_output import OutputPiece
from jobs.models import Job
from jobs.prompts.tools import frames
from jobs.prompts.tools.calls import read_calls
from jobs.responses.output import items_of
from jobs.states import FinishReason, JobState

# The task of jobs whose response is in the background, and of those whose callers wait.
RESPONSE_TASK: Final = "response"
WAITED_TASK: Final = "chat"
_STATUSES: Final[Mapping[JobState, str]] = {
    JobState.BLOCKED: "queued",
    JobState.PREPARING: "queued",
    JobState.QUEUED: "queued",
    JobState.RUNNING: "in_progress",
    JobState.COMPLETED: "completed",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "cancelled",
    JobState.EXPIRED: "failed",
}
# Errors of the request. OpenAI's clients know a short list of codes; the message says the rest.
_CALLERS_FAULTS: Final = frozenset(
    {
        "chat_template_error",
        "context_length_exceeded",
        "invalid_prompt",
        "invalid_value",
        "prompt_uncountable",
        "unsafe_text",
        "unsupported_parameter",
    }
)
_SCORE_BYTES: Final = 70  # of a log probability as JSON
_TIMES_AS_JSON: Final = 16  # what a byte of packed log probabilities may become
_EXPIRED: Final[JsonObject] = {
    "code": "server_error",
    "message": "No engine had room for the response in time.",
}


@dataclass(frozen=True, slots=True)
class ResponseState:
    """What a response shows of its job; `Job` describes the fields."""

    id: UUID
    state: JobState
    model: str
    metadata: JsonObject
    created_at: datetime
    finalized_at: datetime | None = None
    finish_reason: str | None = None
    error: JsonObject | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int = 0

    @classmethod
    def of(cls, job: Job) -> Self:
        """Take the fields from the job's row."""
        return cls(
            id=job.id,
            state=JobState(job.state),
            model=job.address,
            metadata=job.labels,
            created_at=job.created_at,
            finalized_at=job.finalized_at,
            finish_reason=job.finish_reason,
            error=job.error,
            prompt_tokens=job.prompt_tokens,
            cached_tokens=job.cached_tokens,
            completion_tokens=job.completion_tokens,
        )

    def moved(self, state: JobState) -> Self:
        """Return what an unfinished job showed in this state."""
        return type(self)(self.id, state, self.model, self.metadata, self.created_at)

    @property
    def status(self) -> str:
        """In OpenAI's words."""
        return status_of(self.state, self.finish_reason)


@dataclass(frozen=True, slots=True)
class ResponseOutput:
    """What a response's job generated.

    Attributes:
        piece: thinking and text, whole or partial; calls are framed within the text.
        reasoning_tokens: how many of its tokens were thinking.
        packed_log_probs: as they are stored, if the piece has none; None: they were not asked for.
    """

    piece: OutputPiece
    reasoning_tokens: int = 0
    packed_log_probs: bytes | None = None

    @property
    def num_json_bytes(self) -> int:
        """About the size of its log probabilities as JSON."""
        if (scored := self.piece.log_probs) is not None:
            return len(scored) * (1 + scored.num_top) * _SCORE_BYTES
        return len(self.packed_log_probs or b"") * _TIMES_AS_JSON

    @property
    def scored(self) -> OutputPiece:
        """The piece with its log probabilities; unpacking them may take a tenth of a second."""
        if self.packed_log_probs is None:
            return self.piece
        return self.piece._replace(log_probs=log_probs.read(self.packed_log_probs))


def stored_output(
    *,
    output: str,
    reasoning: str | None,
    reasoning_tokens: int,
    log_probs: bytes | None,
    tool_calls: str | None,
) -> ResponseOutput:
    """Build an output of the columns of a result, which describes them."""
    visible = frames.framed(output, read_calls(tool_calls))
    return ResponseOutput(OutputPiece(reasoning or "", visible), reasoning_tokens, log_probs)


NOTHING: Final = ResponseOutput(OutputPiece("", ""))


def status_of(state: JobState | str, finish_reason: str | None) -> str:
    """Return the status of a response whose job is in this state."""
    if state == JobState.COMPLETED and finish_reason == FinishReason.LENGTH:
        return "incomplete"
    return _STATUSES[JobState(state)]


def ended_status(job: Job) -> str:
    """Return the status of the response of a job that has ended."""
    return status_of(job.state, job.finish_reason)


def response_object(
    state: ResponseState, repeated: Mapping[str, object], output: ResponseOutput = NOTHING
) -> JsonObject:
    """Build a `response`.

    Args:
        state: of its job.
        repeated: the parameters of its request.
        output: of a job that has ended; it is not shown before.
    """
    status, has_ended = state.status, state.finalized_at is not None
    is_cut = status == "incomplete"
    return {
        "id": ids.response_id(state.id),
        "object": "response",
        "created_at": int(state.created_at.timestamp()),
        "completed_at": _seconds(state.finalized_at) if state.state == JobState.COMPLETED else None,
        "status": status,
        "error": _error(state),
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "model": state.model,
        "output": output_items(state, output) if has_ended else [],
        "usage": _usage(state, output) if has_ended and state.prompt_tokens is not None else None,
        "metadata": state.metadata,
        **repeated,
    }


def output_items(state: ResponseState, output: ResponseOutput) -> list[JsonObject]:
    """Build the items of an output: what the model thought, said and called."""
    is_answer = state.state == JobState.COMPLETED
    items = items_of(state.id, output.scored, is_whole=state.status == "completed", is_answer=is_answer)
    return [item.as_object() for item in items]


def _error(state: ResponseState) -> JsonObject | None:
    if state.state == JobState.EXPIRED:
        return _EXPIRED
    if state.error is None:
        return None
    is_callers = state.error.get("code") in _CALLERS_FAULTS
    return {
        "code": "invalid_prompt" if is_callers else "server_error",
        "message": str(state.error.get("message", "The engine failed.")),
    }


def _usage(state: ResponseState, output: ResponseOutput) -> JsonObject:
    prompt_tokens = state.prompt_tokens or 0
    return {
        "input_tokens": prompt_tokens,
        "input_tokens_details": {"cached_tokens": state.cached_tokens or 0, "cache_write_tokens": 0},
        "output_tokens": state.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": output.reasoning_tokens},
        "total_tokens": prompt_tokens + state.completion_tokens,
    }


def _seconds(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp())
