"""The outcomes of a run, and what becomes of its job."""

from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial

from jobs import lifecycle
from jobs.checkpoints import Output
from jobs.errors import (
    EngineBusyError,
    EngineForbidsError,
    EngineLostError,
    EngineUnavailableError,
    LongbatchError,
)
from jobs.finishing import JobEnd
from jobs.models import JsonObject
from jobs.scheduling.growth import Yielded
from jobs.settings import JobSettings
from jobs.states import AttemptOutcome, FinishReason, StopReason
from jobs.transitions import Lease, LeaseLost
from worker.engine.storable import sanitize


@dataclass(frozen=True, slots=True)
class Finished:
    """The answer is complete."""

    reason: FinishReason


@dataclass(frozen=True, slots=True)
class SegmentEnded:
    """The engine generated all reserved tokens; the answer is not complete yet."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """The job was asked to end early."""

    reason: StopReason


@dataclass(frozen=True, slots=True)
class NotLoaded:
    """The prompt could not be read, so nothing was sent; the job goes back unchanged, for a while."""


@dataclass(frozen=True, slots=True)
class Recounted:
    """The prompt is not as long as its reservation assumed; nothing was sent."""

    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Failed:
    """An error ended the run."""

    error: LongbatchError


Outcome = Finished | SegmentEnded | Stopped | Yielded | NotLoaded | Recounted | Failed | LeaseLost


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run ended.

    Attributes:
        outcome: what becomes of the job.
        engine_is_done: the engine certainly holds nothing for the job any longer.
    """

    outcome: Outcome
    engine_is_done: bool = field(default=False, kw_only=True)


def write_outcome(lease: Lease, end: RunEnd, output: Output, *, settings: JobSettings) -> JobEnd:
    """Return what becomes of a job whose run ended, for `lifecycle.finish`.

    Args:
        lease: the fence.
        end: how the run ended.
        output: the generated output, possibly empty.
        settings: limits on attempts and rescues.
    """
    ended = partial(JobEnd, job_id=lease.job_id, lease_id=lease.lease_id, output=output)
    match end.outcome:
        case Finished(reason):
            written = ended(verb="complete", finish_reason=reason)
        case Stopped(StopReason.CANCEL | StopReason.EXPIRE as reason):
            written = ended(verb=reason.value)
        case Stopped(StopReason.PREEMPT):
            written = ended(verb="release", outcome=AttemptOutcome.PREEMPTED)
        case Yielded():
            written = ended(verb="release", outcome=AttemptOutcome.YIELDED)
        case Stopped() | SegmentEnded():
            written = ended(verb="release", outcome=AttemptOutcome.RELEASED)
        case NotLoaded():  # one prompt that cannot be read must not be claimed in every tick
            wait = timedelta(seconds=settings.retry_backoff_seconds)
            written = ended(verb="release", outcome=AttemptOutcome.RELEASED, wait=wait)
        case Recounted(prompt_tokens):
            written = ended(verb="release", outcome=AttemptOutcome.RECOUNTED, prompt_tokens=prompt_tokens)
        case Failed(error):
            written = _write_failure(lease, error, output, settings=settings)
        case LeaseLost():
            written = ended(verb=None)
    return replace(written, engine_is_done=end.engine_is_done)


def _write_failure(lease: Lease, error: LongbatchError, output: Output, *, settings: JobSettings) -> JobEnd:
    """Return the same for a run that an error ended."""
    backoff = timedelta(seconds=settings.retry_backoff_seconds)
    reported: JsonObject = {"code": error.code, "message": sanitize(error.message)[0]}
    ended = partial(
        JobEnd, job_id=lease.job_id, lease_id=lease.lease_id, output=output, error_code=error.code
    )
    match error:
        case (
            EngineForbidsError() | EngineBusyError()
        ):  # other jobs go first: their answers show what it means
            return ended(verb="release", outcome=AttemptOutcome.RELEASED, wait=backoff)
        case EngineUnavailableError():
            return ended(verb="release", outcome=AttemptOutcome.RELEASED)
        case EngineLostError():
            return lifecycle.lost(lease, error.code, max_rescues=settings.max_rescues)
        case LongbatchError(retryable=True):
            return ended(
                verb="retry",
                outcome=AttemptOutcome.RETRIED,
                error=reported,
                limit=settings.max_attempts,
                wait=backoff,
            )
        case _:
            return ended(verb="fail", error=reported)
