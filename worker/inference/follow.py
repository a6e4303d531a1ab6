"""Following a stream to its end: a complete answer, a deadline, a stop request or a lost lease."""

import time
from typing import Final

from jobs.errors import EngineError, StreamTimeoutError
from jobs.transitions import LeaseLost
from worker.engine.deadlines import Deadlines
from worker.engine.deltas import TextDelta, TokenDelta, VectorDelta
from worker.engine.engine import StreamEnd
from worker.inference.outcome import Failed, Finished, Outcome, RunEnd, SegmentEnded, Stopped
from worker.inference.run import Run, StopAsked
from worker.inference.text_answer import AnyAnswer

_MAX_MARGIN_SECONDS: Final = 3.0
# The final response comes with the last token, or right after it.
_FINAL_SECONDS: Final = 5.0


async def follow(
    run: Run,
    deadlines: Deadlines,
    *,
    lease_seconds: float,
    snapshot_seconds: float,
    ends_itself: bool = False,
) -> RunEnd:
    """Follow the stream until the run ends.

    The run waits only here, and never past the next deadline: neither a silent stream nor a hanging database
    can block it.

    Args:
        run: its inbox receives every event.
        deadlines: limits of the stream, counted from now.
        lease_seconds: length of a full lease; the stream ends a little before it does.
        snapshot_seconds: how often to leave a snapshot of the answer for the next checkpoint.
        ends_itself: the engine ends the answer where we do, and confirms it; not at stop strings that it was
            not told.
    """
    answer = run.answer
    started = last_token = snapped = time.monotonic()
    # Time to stop the engine's request and get its confirmation while the job is still ours.
    margin = min(_MAX_MARGIN_SECONDS, lease_seconds / 10)
    ends_itself = ends_itself and not answer.ends_here
    while True:
        due = min(last_token + _patience(answer, deadlines), started + deadlines.total)
        lease_end = run.valid_until - margin
        now = time.monotonic()
        # Before each event: a backlog of tokens must not carry the stream past its lease.
        if now >= lease_end:
            return RunEnd(LeaseLost())
        event = await run.inbox.get(timeout=max(0.0, min(due, lease_end) - now))
        match event:
            case None:
                if time.monotonic() >= due:
                    return RunEnd(_late(answer, over_total=due == started + deadlines.total))
                # The keeper may have renewed the lease meanwhile.
            case TokenDelta() | TextDelta() | VectorDelta():
                # What comes after the answer's end does not lengthen the wait for the stream's.
                last_token = time.monotonic() if answer.finish_reason is None else last_token
                answer.take(event)
                run.note_tokens(last_token, num_tokens=answer.num_tokens)
                run.publisher.publish()
                if answer.is_resumable and last_token - snapped >= snapshot_seconds:
                    run.snapshot, snapped = answer.snapshot(), last_token
                # Where the engine ends by itself, as it does at max_tokens, its final response is on its way.
                if answer.finish_reason is not None and not answer.is_full and not ends_itself:
                    return RunEnd(Finished(answer.finish_reason))
            case StreamEnd(error, confirmed):
                return RunEnd(_ended(answer, error), engine_is_done=confirmed)
            case StopAsked(reason):
                return RunEnd(LeaseLost() if reason is None else Stopped(reason))


async def wait_for_stop(run: Run, *, seconds: float) -> Outcome | None:
    """Wait for an event that ends a job without a running stream. Returns None if none comes in time."""
    if time.monotonic() >= run.valid_until:
        return LeaseLost()
    event = await run.inbox.get(timeout=seconds)
    if isinstance(event, StopAsked):
        return LeaseLost() if event.reason is None else Stopped(event.reason)
    return None


async def wait_for_end(run: Run, *, seconds: float, answer: AnyAnswer | None = None) -> bool:
    """Wait for the engine to confirm the end of its request, dropping all other events.

    Deltas that arrive meanwhile are appended to `answer`: one that does not stream arrives only now.

    Returns:
        True if the engine confirms within `seconds` that it holds nothing for the request.
    """
    until = time.monotonic() + seconds
    while True:
        event = await run.inbox.get(timeout=max(0.0, until - time.monotonic()))
        if event is None and time.monotonic() >= until:
            return False
        if isinstance(event, StreamEnd):
            return event.confirmed
        if answer is not None and isinstance(event, TokenDelta | TextDelta | VectorDelta):
            answer.take(event)


def _ended(answer: AnyAnswer, error: EngineError | None) -> Outcome:
    # An error after the last token changes nothing: the answer is complete.
    if error is not None and answer.finish_reason is None:
        return Failed(error)
    if answer.finish_reason is None and answer.is_full:
        return SegmentEnded()
    return Finished(answer.finish())


def _patience(answer: AnyAnswer, deadlines: Deadlines) -> float:
    """Return how many seconds of silence are allowed now."""
    if answer.is_full or answer.finish_reason is not None:
        return _FINAL_SECONDS
    return deadlines.between_tokens if answer.is_streaming else deadlines.first_token


def _late(answer: AnyAnswer, *, over_total: bool) -> Outcome:
    if answer.finish_reason is not None:  # complete; only the engine's confirmation is missing
        return Finished(answer.finish_reason)
    if over_total:
        return Failed(StreamTimeoutError("The engine exceeded the time limit for this number of tokens."))
    return Failed(
        StreamTimeoutError(
            "The stream fell silent." if answer.is_streaming else "No first token came in time."
        )
    )
