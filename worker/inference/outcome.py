"""The outcomes of a run, and recording one in a fenced transaction."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy.orm import Session

from jobs import lifecycle
from jobs.checkpoints import Output
from jobs.engines import reservations
from jobs.errors import EngineLostError, EngineUnavailableError, LongbatchError
from jobs.models import JsonObject
from jobs.settings import JobSettings
from jobs.states import FinishReason, JobState, StopReason
from jobs.transitions import Lease
from worker.engine.verdicts import sanitize


@dataclass(frozen=True, slots=True)
class Finished:
    """The answer is complete."""

    reason: FinishReason


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The engine generated all reserved tokens; the answer is not complete yet."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """The job was asked to end early."""

    reason: StopReason


@dataclass(frozen=True, slots=True)
class Yielded:
    """The job left the engine so that others could go on."""


@dataclass(frozen=True, slots=True)
class Recounted:
    """The prompt is not as long as its reservation assumed; nothing was sent."""

    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Failed:
    """An error ended the run."""

    error: LongbatchError


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """Another worker may have the job now: this one must not write to it."""


Outcome = Finished | RunEnded | Stopped | Yielded | Recounted | Failed | LeaseLost


def record(
    session: Session,
    lease: Lease,
    outcome: Outcome,
    output: Output,
    *,
    settings: JobSettings,
    is_confirmed: bool,
) -> JobState | None:
    """Move the job to the outcome's state, and delete or drain its reservation.

    Args:
        session: the caller's transaction.
        lease: the fence.
        outcome: how the run ended.
        output: the generated output, possibly empty.
        settings: limits on attempts and rescues.
        is_confirmed: the engine no longer holds anything for the job.

    Returns:
        The job's new state; None if the lease is lost.
    """
    state = _move(session, lease, outcome, output, settings=settings)
    if is_confirmed:
        reservations.close(session, lease.lease_id)
    else:
        reservations.drain(session, lease.lease_id)
    return state


def _move(
    session: Session, lease: Lease, outcome: Outcome, output: Output, *, settings: JobSettings
) -> JobState | None:
    match outcome:
        case Finished(reason):
            return lifecycle.complete(session, lease, output, reason)
        case Stopped(StopReason.CANCEL | StopReason.EXPIRE as reason):
            return lifecycle.finish_stopped(session, lease, reason, output)
        case Stopped() | RunEnded() | Yielded():
            return _release_verb(outcome)(session, lease, output)
        case Recounted(prompt_tokens):
            return lifecycle.recount(session, lease, prompt_tokens=prompt_tokens)
        case Failed(error):
            return _fail(session, lease, error, output, settings=settings)
        case LeaseLost():
            pass
    return None


def _release_verb(
    outcome: Stopped | RunEnded | Yielded,
) -> Callable[[Session, Lease, Output], JobState | None]:
    """Return the verb that puts an unfinished job back into the queue."""
    if isinstance(outcome, Yielded):
        return lifecycle.yield_slot
    return lifecycle.release_preempted if outcome == Stopped(StopReason.PREEMPT) else lifecycle.release


def _fail(
    session: Session, lease: Lease, error: LongbatchError, output: Output, *, settings: JobSettings
) -> JobState | None:
    if isinstance(error, EngineUnavailableError):
        return lifecycle.release(session, lease, output)
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
        backoff=timedelta(seconds=settings.retry_backoff_seconds),
        output=partial,
    )
