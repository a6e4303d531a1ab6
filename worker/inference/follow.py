"""A running stream, followed to its end: answer, deadline, request to stop or lost lease."""

import queue
import time
from collections.abc import Callable
from typing import Final

from jobs.errors import EngineError, StreamTimeoutError
from worker.engine.deadlines import Deadlines
from worker.engine.deltas import Text, Tokens
from worker.engine.stream import Ended
from worker.inference.answer import Answer
from worker.inference.leases import HeldLease, StopAsked
from worker.inference.outcome import Failed, Finished, LeaseLost, Outcome, RunEnded, Stopped
from worker.inference.text_answer import TextAnswer

_MAX_MARGIN_SECONDS: Final = 3.0
# The final response comes with the last token, or right behind it.
_FINAL_SECONDS: Final = 5.0


def follow(
    held: HeldLease,
    answer: Answer | TextAnswer,
    deadlines: Deadlines,
    *,
    tell: Callable[[], None],
    lease_seconds: float,
    snapshot_seconds: float,
) -> tuple[Outcome, bool]:
    """How the run ends, and whether its stream has ended too with the engine's word for it.

    The slot waits here and nowhere else, never longer than until the next deadline: neither a silent stream
    nor a hanging database can keep it.

    Args:
        held: the job; its inbox gets all that happens.
        answer: takes the tokens.
        deadlines: of the stream, counted from now.
        tell: called whenever there is more to read.
        lease_seconds: of a whole lease; the stream is ended a little before.
        snapshot_seconds: how often the answer so far is left to be saved.
    """
    started = heard = snapped = time.monotonic()
    # Time to tell the engine and hear from it, while the job is still ours.
    margin = min(_MAX_MARGIN_SECONDS, lease_seconds / 10)
    while True:
        due = min(heard + _patience(answer, deadlines), started + deadlines.total)
        lease_end = held.valid_until - margin
        now = time.monotonic()
        # Before each event: a backlog of tokens must not carry the stream past its lease.
        if now >= lease_end:
            return LeaseLost(), False
        try:
            event = held.inbox.get(timeout=max(0.0, min(due, lease_end) - now))
        except queue.Empty:
            if time.monotonic() >= due:
                return _late(answer, over_total=due == started + deadlines.total), False
            continue  # the lease may have been renewed meanwhile
        match event:
            case Tokens() | Text():
                heard = time.monotonic()
                answer.take(event)
                held.hear(heard, num_tokens=answer.num_tokens)
                tell()
                if answer.is_resumable and heard - snapped >= snapshot_seconds:
                    held.snapshot, snapped = answer.snapshot(), heard
                # At max_tokens the engine ends by itself, with a final response that is on its way.
                if answer.finish_reason is not None and not answer.is_full:
                    return Finished(answer.finish_reason), False
            case Ended(error, confirmed):
                return _ended(answer, error), confirmed
            case StopAsked(reason):
                return (LeaseLost() if reason is None else Stopped(reason)), False


def wait_for_stop(held: HeldLease, *, seconds: float) -> Outcome | None:
    """What ends a job that has no stream just now; None: nothing within this time."""
    if time.monotonic() >= held.valid_until:
        return LeaseLost()
    try:
        event = held.inbox.get(timeout=seconds)
    except queue.Empty:
        return None
    if isinstance(event, StopAsked):
        return LeaseLost() if event.reason is None else Stopped(event.reason)
    return None


def wait_for_end(held: HeldLease, *, seconds: float, answer: Answer | TextAnswer | None = None) -> bool:
    """Whether the engine confirms within this time that it is done; what else comes is dropped.

    An `answer` takes what comes until then: one that was asked for at once is there only now.
    """
    until = time.monotonic() + seconds
    while True:
        try:
            event = held.inbox.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            return False
        if isinstance(event, Ended):
            return event.confirmed
        if answer is not None and isinstance(event, Tokens | Text):
            answer.take(event)


def _ended(answer: Answer | TextAnswer, error: EngineError | None) -> Outcome:
    # An error behind the last token changes nothing: the answer is whole.
    if error is not None and answer.finish_reason is None:
        return Failed(error)
    if answer.finish_reason is None and answer.is_full:
        return RunEnded()
    return Finished(answer.finish())


def _patience(answer: Answer | TextAnswer, deadlines: Deadlines) -> float:
    """Seconds of silence that are allowed now."""
    if answer.is_full:
        return _FINAL_SECONDS
    return deadlines.between_tokens if answer.is_streaming else deadlines.first_token


def _late(answer: Answer | TextAnswer, *, over_total: bool) -> Outcome:
    if answer.finish_reason is not None:  # whole; only the engine's word for it is missing
        return Finished(answer.finish_reason)
    if over_total:
        return Failed(StreamTimeoutError("the stream took longer than its tokens can explain"))
    return Failed(
        StreamTimeoutError("the stream fell silent" if answer.is_streaming else "no first token came in time")
    )
