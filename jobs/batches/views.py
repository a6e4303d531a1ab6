"""The public shape of a batch: OpenAI's object with our extra fields."""

from typing import Annotated, Final, Literal
from uuid import UUID

from pydantic import Field
from typing_extensions import TypedDict

from jobs import ids
from jobs.models import JsonObject
from jobs.models.batch import Batch
from jobs.states.batch import BatchState, Endpoint
from jobs.validation import CompletionWindow, choice, documented_as
from jobs.views import Labels, optional_seconds

# Keeps a batch with an error on every line from dominating a page of batches; the batch itself shows all.
MAX_LISTED_ERRORS: Final = 100


EndpointName = Annotated[str, choice(Endpoint)]


class LineFault(TypedDict):
    """One reason why a batch failed validation."""

    code: Annotated[str, Field(examples=["invalid_json_line"])]
    line: Annotated[int | None, Field(description="Counted from 1; null: the whole file.")]
    message: str
    param: str | None


class BatchErrors(TypedDict):
    """All reasons why a batch failed validation; lists show only the first hundred."""

    object: Literal["list"]
    data: list[Annotated[JsonObject, documented_as(LineFault)]]


class RequestCounts(TypedDict):
    """Line counts of a batch, 0 during validation. Cancelled and expired lines are only in `total`."""

    total: int
    completed: int
    failed: int


class CachedTokens(TypedDict):
    """Input tokens by kind."""

    cached_tokens: int


class ReasoningTokens(TypedDict):
    """Output tokens by kind."""

    reasoning_tokens: int


class BatchUsage(TypedDict):
    """Tokens of the completed lines."""

    input_tokens: int
    input_tokens_details: CachedTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class BatchObject(TypedDict):
    """A batch as JSON; times in seconds since 1970."""

    id: str
    object: Literal["batch"]
    endpoint: EndpointName
    model: str | None
    errors: BatchErrors | None
    input_file_id: str
    completion_window: CompletionWindow
    status: Annotated[str, choice(BatchState)]
    output_file_id: Annotated[
        str | None, Field(description="Set with the first completed line; grows until the end.")
    ]
    error_file_id: Annotated[
        str | None, Field(description="Set with the first failed line; grows until the end.")
    ]
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    usage: BatchUsage
    metadata: Labels | None
    retry_of: Annotated[str | None, Field(description="The batch whose failed lines this one runs again.")]
    error_counts: Annotated[
        dict[str, int], Field(description="Lines in the error file by the code of their error.")
    ]


def batch_object(batch: Batch, *, max_errors: int | None = None) -> BatchObject:
    """Return the batch as callers see it, with `max_errors` errors (None: all)."""
    errors = None
    if batch.errors is not None:
        errors = BatchErrors(object="list", data=batch.errors[:max_errors])
    return BatchObject(
        id=ids.batch_id(batch.id),
        object="batch",
        endpoint=batch.endpoint,
        model=batch.model,
        errors=errors,
        input_file_id=ids.file_id(batch.input_file_id),
        completion_window=batch.completion_window,
        status=batch.state,
        output_file_id=_file_id(batch.output_file_id),
        error_file_id=_file_id(batch.error_file_id),
        created_at=int(batch.created_at.timestamp()),
        in_progress_at=optional_seconds(batch.in_progress_at),
        expires_at=int(batch.expires_at.timestamp()),
        finalizing_at=optional_seconds(batch.finalizing_at),
        completed_at=optional_seconds(batch.completed_at),
        failed_at=optional_seconds(batch.failed_at),
        expired_at=optional_seconds(batch.expired_at),
        cancelling_at=optional_seconds(batch.cancelling_at),
        cancelled_at=optional_seconds(batch.cancelled_at),
        request_counts={
            "total": batch.num_lines,
            "completed": batch.num_completed,
            "failed": batch.num_failed,
        },
        usage={
            "input_tokens": batch.input_tokens,
            "input_tokens_details": {"cached_tokens": batch.cached_tokens},
            "output_tokens": batch.output_tokens,
            "output_tokens_details": {"reasoning_tokens": batch.reasoning_tokens},
            "total_tokens": batch.input_tokens + batch.output_tokens,
        },
        metadata=batch.labels,
        retry_of=None if batch.retry_of is None else ids.batch_id(batch.retry_of),
        error_counts=batch.error_counts,
    )


def _file_id(value: UUID | None) -> str | None:
    return None if value is None else ids.file_id(value)
