"""The public shape of a job: what callers poll and what webhooks carry."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypedDict

from jobs import ids
from jobs.models import Job, JsonObject
from jobs.states import StopReason, WaitReason

PRIORITIES: dict[str, int] = {"low": -1, "normal": 0, "high": 1}
PRIORITY_NAMES = {rank: name for name, rank in PRIORITIES.items()}


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """The queue position of a waiting job.

    Attributes:
        position: 1 is next; None: it is not in line.
        reason: why it waits; None: nothing holds it back.
        estimated_start_at: None: there is no estimate.
    """

    position: int | None = None
    reason: WaitReason | None = None
    estimated_start_at: datetime | None = None


class JobObject(TypedDict):
    """A job as JSON; times are RFC 3339 in UTC, tokens are counts of the served model's tokenizer."""

    id: str
    object: str
    state: str
    task: str
    model: str
    custom_id: str | None
    metadata: JsonObject
    priority: str
    max_tokens: int
    prompt_tokens: int | None
    completion_tokens: int
    finish_reason: str | None
    attempt: int
    cancel_requested: bool
    error: JsonObject | None
    created_at: str
    started_at: str | None
    first_token_at: str | None
    finalized_at: str | None
    expires_at: str | None


class QueueObject(TypedDict):
    """A job's queue position as JSON; an estimate, see `QueuePlace`."""

    position: int | None
    reason: str | None
    estimated_start_at: str | None


class SeenJobObject(JobObject):
    """A job as a reader sees it: with its queue position while it waits."""

    queue: QueueObject | None


def job_object(job: Job) -> JobObject:
    """Convert a job to the shape that callers see."""
    return JobObject(
        id=ids.job_id(job.id),
        object="job",
        state=job.state,
        task=job.task,
        model=job.model,
        custom_id=job.custom_id,
        metadata=job.labels,
        priority=PRIORITY_NAMES[job.rank],
        max_tokens=job.max_tokens,
        prompt_tokens=job.prompt_tokens,
        completion_tokens=job.completion_tokens,
        finish_reason=job.finish_reason,
        attempt=job.attempt,
        cancel_requested=job.stop_reason == StopReason.CANCEL,
        error=job.error,
        created_at=rfc3339(job.created_at),
        started_at=optional_rfc3339(job.started_at),
        first_token_at=optional_rfc3339(job.first_token_at),
        finalized_at=optional_rfc3339(job.finalized_at),
        expires_at=optional_rfc3339(job.expires_at),
    )


def queue_object(place: QueuePlace) -> QueueObject:
    """Convert a queue position to the shape that callers see.

    The estimated start is cut to whole seconds.
    """
    start = place.estimated_start_at
    return QueueObject(
        position=place.position,
        reason=place.reason,
        estimated_start_at=optional_rfc3339(start.replace(microsecond=0) if start else None),
    )


def rfc3339(moment: datetime) -> str:
    """Format a moment as `2026-01-31T12:00:00.123456Z`."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def optional_rfc3339(moment: datetime | None) -> str | None:
    """Format a moment as `rfc3339` does, and None as None."""
    return None if moment is None else rfc3339(moment)
