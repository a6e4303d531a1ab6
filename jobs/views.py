"""The public shape of a job: what callers poll and what webhooks carry.

The OpenAPI document describes these types too; it names an object inside another as its class here.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Literal, NotRequired, get_args

from pydantic import Field
from typing_extensions import TypedDict  # pydantic needs it below Python 3.12

from jobs import ids
from jobs.embeddings import EMBED_TASK
from jobs.models import Job, JsonObject
from jobs.prompts.messages import Task
from jobs.responses.objects import RESPONSE_TASK, WAITED_TASK
from jobs.states import FinishReason, JobState, StopReason, WaitReason
from jobs.states.summary import ANSWER_TASKS, EXTRACTION_TASKS, TASKS
from jobs.validation import choice, documented_as

PRIORITIES: dict[str, int] = {"low": -1, "normal": 0, "high": 1}
PRIORITY_NAMES = {rank: name for name, rank in PRIORITIES.items()}


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """The queue position of a waiting job.

    Attributes:
        position: 1 is next; None: it is not in line.
        reason: why it waits; None: nothing holds it back.
        estimated_start_at: None: there is no estimate.
        detail: what an operator said of the reason; None: it says all.
    """

    position: int | None = None
    reason: WaitReason | None = None
    estimated_start_at: datetime | None = None
    detail: str | None = None


class JobError(TypedDict):
    """Why a job failed."""

    code: Annotated[str, Field(examples=["context_length_exceeded"])]
    message: str
    details: NotRequired[Annotated[JsonObject | None, Field(description="Figures that depend on the code.")]]


Moment = Annotated[str, documented_as(datetime)]
Labels = Annotated[JsonObject, documented_as(dict[str, str])]
StoredError = Annotated[JsonObject, documented_as(JobError)]
Priority = Annotated[str, choice(PRIORITIES)]
StateName = Annotated[str, choice(JobState)]
FinishReasonName = Annotated[str, choice(FinishReason)]
# Jobs of all trees, of callers who wait and of responses appear in the tenant's list of jobs too.
TaskName = Annotated[
    str,
    choice(
        [
            *(*get_args(Task), WAITED_TASK, RESPONSE_TASK, EMBED_TASK),
            *(*TASKS.values(), *ANSWER_TASKS.values(), *EXTRACTION_TASKS.values()),
        ]
    ),
]


class JobObject(TypedDict):
    """A job as JSON; times are RFC 3339 in UTC, tokens are counts of the served model's tokenizer."""

    id: str
    object: Literal["job"]
    state: StateName
    task: TaskName
    model: str
    custom_id: str | None
    metadata: Labels
    priority: Priority
    max_tokens: int
    prompt_tokens: Annotated[int | None, Field(description="Null until counted.")]
    cached_tokens: Annotated[
        int | None,
        Field(
            description="Prompt tokens that the engine had in its cache when it got the job; all of them if"
            " the job took an equal one's answer. Null until its first run ends, and where the engine does"
            " not tell."
        ),
    ]
    completion_tokens: Annotated[
        int, Field(description="Tokens generated so far; final once the job has ended.")
    ]
    finish_reason: FinishReasonName | None
    attempt: Annotated[int, Field(description="Attempts spent so far.")]
    cancel_requested: bool
    error: StoredError | None
    created_at: Moment
    started_at: Moment | None
    first_token_at: Moment | None
    finalized_at: Moment | None
    expires_at: Moment | None


class QueueReply(TypedDict):
    """The queue position of a waiting job: an estimate, at most a second old near the head of the queue."""

    position: Annotated[
        int | None,
        Field(
            description="1 is next. Near the head, positions follow the order in which jobs are expected to"
            " start; large and small jobs are packed together, so this is not the order of arrival. From"
            " about the 130th on they follow rank, which is approximate: jobs may share a position. Null"
            " when the job is not in line: `dependency`, `preparing`, `queue_paused`, `retry_backoff`,"
            " `engine_paused`, `engine_down`, `no_engine_fits`."
        ),
    ]
    reason: Annotated[
        Annotated[str, choice(WaitReason)] | None,
        Field(
            description="What the job waits for; the first reason that applies. `dependency`: other jobs."
            " `preparing`: its tokens are being counted. `queue_paused`: an operator paused your queue."
            " `retry_backoff`: an attempt failed, and the next one starts later. `engine_paused`: an"
            " operator paused the engines that could run it. `engine_down`: no engine that could hold it was"
            " seen in the last 30 s, or none is ready. `no_engine_fits`: every engine of its model is too"
            " small for its prompt and max_tokens. `reservation`: there is room, but it is reserved for a job"
            " of higher precedence, which this one would delay. `slots`: it is next, and all batch slots are"
            " taken. `blocks`: it is next or ranks first, and too few KV-cache blocks are free. `alone`: the"
            " same, but it runs only on an idle engine, because workers crashed while running it. `behind`:"
            " other jobs go first. Null: nothing holds it back, and it starts within about a second."
        ),
    ]
    estimated_start_at: Annotated[
        Moment | None,
        Field(
            description="Estimated from the measured speed of the engines and the output of similar jobs,"
            " assuming that no job of higher rank arrives. Half of all estimates are within 20 % of the"
            " wait, one in ten is more than 80 % off. Null when no estimate is possible."
        ),
    ]
    detail: Annotated[
        str | None,
        Field(
            description="Who paused what, and why, with `queue_paused` and `engine_paused`; otherwise null."
        ),
    ]


class JobWithQueueObject(JobObject):
    """A job as a reader sees it: with its queue position while it waits."""

    queue: Annotated[
        QueueReply | None,
        Field(
            description="Null when the job is running or has ended. Lists, webhooks and other responses omit"
            " it, and the ETag does not cover it."
        ),
    ]


def job_object(job: Job) -> JobObject:
    """Convert a job to the shape that callers see."""
    return JobObject(
        id=ids.job_id(job.id),
        object="job",
        state=job.state,
        task=job.task,
        model=job.address,
        custom_id=job.custom_id,
        metadata=job.labels,
        priority=PRIORITY_NAMES[job.rank],
        max_tokens=job.max_tokens,
        prompt_tokens=job.prompt_tokens,
        cached_tokens=job.cached_tokens,
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


def queue_object(place: QueuePosition) -> QueueReply:
    """Convert a queue position to the shape that callers see.

    The estimated start is cut to whole seconds.
    """
    start = place.estimated_start_at
    return QueueReply(
        position=place.position,
        reason=place.reason,
        estimated_start_at=optional_rfc3339(start.replace(microsecond=0) if start else None),
        detail=place.detail,
    )


def rfc3339(moment: datetime) -> str:
    """Format a moment as `2026-01-31T12:00:00.123456Z`."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def optional_rfc3339(moment: datetime | None) -> str | None:
    """Format a moment as `rfc3339` does, and None as None."""
    return None if moment is None else rfc3339(moment)


def optional_seconds(moment: datetime | None) -> int | None:
    """Convert a moment to whole seconds since 1970, and None to None."""
    return None if moment is None else int(moment.timestamp())
