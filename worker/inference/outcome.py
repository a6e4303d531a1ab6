"""The outcomes of a run, and recording its end in a fenced transaction."""

from dataclasses import dataclass, field
from datetime import timedelta

from sqlalchemy.orm import Session

from jobs import lifecycle
from jobs.checkpoints import Output
from jobs.engines import reservations, tensor_rows
from jobs.errors import (
    EngineBusyError,
    EngineForbidsError,
    EngineLostError,
    EngineUnavailableError,
    LongbatchError,
)
from jobs.models import JsonObject
from jobs.scheduling.growth import Yielded
from jobs.settings import JobSettings
from jobs.states import FinishReason, JobState, StopReason
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
    """The database was unavailable before anything was sent; the job goes back unchanged."""


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


def write_outcome(
    session: Session, lease: Lease, end: RunEnd, output: Output, *, settings: JobSettings
) -> JobState | None:
    """Move the job to the outcome's state, and delete or drain its reservation.

    Args:
        session: the caller's transaction.
        lease: the fence.
        end: how the run ended.
        output: the generated output, possibly empty.
        settings: limits on attempts and rescues.

    Returns:
        The job's new state; None if the lease is lost.
    """
    match end.outcome:
        case Finished(reason):
            state = _complete(session, lease, output, reason)
        case Stopped(StopReason.CANCEL | StopReason.EXPIRE as reason):
            state = lifecycle.finish_stopped(session, lease, reason, output)
        case Stopped(StopReason.PREEMPT):
            state = lifecycle.release_preempted(session, lease, output)
        case Yielded():
            state = lifecycle.yield_slot(session, lease, output)
        case Stopped() | SegmentEnded() | NotLoaded():
            state = lifecycle.release(session, lease, output)
        case Recounted(prompt_tokens):
            state = lifecycle.recount(session, lease, prompt_tokens=prompt_tokens)
        case Failed(error):
            state = _fail(session, lease, error, output, settings=settings)
        case LeaseLost():
            state = None
    if end.engine_is_done:
        reservations.close(session, lease.lease_id)
    else:
        reservations.drain(session, lease.lease_id)
    return state


def _complete(session: Session, lease: Lease, output: Output, reason: FinishReason) -> JobState | None:
    # A tick that could not store it may have closed its reservation.
    reservations.charge_late(session, lease.job_id, lease.lease_id, produced=output.num_tokens)
    state = lifecycle.complete(session, lease, output, reason)
    if state is not None and output.has_files:
        tensor_rows.publish(session, lease.job_id, lease.lease_id)
    return state


def _fail(
    session: Session, lease: Lease, error: LongbatchError, output: Output, *, settings: JobSettings
) -> JobState | None:
    backoff = timedelta(seconds=settings.retry_backoff_seconds)
    # Other jobs go first: their answers show what it means.
    if isinstance(error, EngineForbidsError | EngineBusyError):
        return lifecycle.release(session, lease, output, wait=backoff, error_code=error.code)
    if isinstance(error, EngineUnavailableError):
        return lifecycle.release(session, lease, output, error_code=error.code)
    if isinstance(error, EngineLostError):
        return lifecycle.release_after_engine_loss(session, lease, max_rescues=settings.max_rescues)
    reported: JsonObject = {"code": error.code, "message": sanitize(error.message)[0]}
    partial = output if output.num_tokens else None
    if not error.retryable:
        return lifecycle.fail(session, lease, reported, partial)
    return lifecycle.retry(
        session,
        lease,
        reported,
        max_attempts=settings.max_attempts,
        backoff=backoff,
        output=partial,
    )
