"""The states of a job and the moves between them: one table that everything else is built from."""

from enum import StrEnum


class JobState(StrEnum):
    """Where a job is in its life; see TRANSITIONS for the moves."""

    BLOCKED = "blocked"  # waits for other jobs
    PREPARING = "preparing"  # its prompt is being counted
    QUEUED = "queued"  # may be claimed by an engine
    RUNNING = "running"  # streams on an engine, under a lease
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"  # its completion window ended first


_S = JobState

# verb -> (the states it may start from, the state it leads to). Guarded UPDATEs take their sources from here.
TRANSITIONS: dict[str, tuple[frozenset[JobState], JobState]] = {
    "unblock": (frozenset({_S.BLOCKED}), _S.PREPARING),
    "prepare": (frozenset({_S.PREPARING}), _S.QUEUED),
    "reject": (frozenset({_S.PREPARING, _S.QUEUED}), _S.FAILED),
    "claim": (frozenset({_S.QUEUED}), _S.RUNNING),
    "release": (frozenset({_S.RUNNING}), _S.QUEUED),
    "retry": (frozenset({_S.RUNNING}), _S.QUEUED),
    "rescue": (frozenset({_S.RUNNING}), _S.QUEUED),
    "complete": (frozenset({_S.RUNNING}), _S.COMPLETED),
    "fail": (frozenset({_S.RUNNING}), _S.FAILED),
    "cancel": (frozenset({_S.BLOCKED, _S.PREPARING, _S.QUEUED, _S.RUNNING}), _S.CANCELLED),
    "expire": (frozenset({_S.BLOCKED, _S.PREPARING, _S.QUEUED, _S.RUNNING}), _S.EXPIRED),
}

TERMINAL: frozenset[JobState] = frozenset({_S.COMPLETED, _S.FAILED, _S.CANCELLED, _S.EXPIRED})
ACTIVE: frozenset[JobState] = frozenset(_S) - TERMINAL


class Lane(StrEnum):
    """Who waits for an answer: a person, or nobody in particular."""

    INTERACTIVE = "interactive"
    BATCH = "batch"


class StopReason(StrEnum):
    """Why a running job should end before the engine is done, weakest last."""

    CANCEL = "cancel"
    EXPIRE = "expire"
    PREEMPT = "preempt"
    SHUTDOWN = "shutdown"


class FinishReason(StrEnum):
    """Why generation ended, in OpenAI's words. A job that did not complete has none."""

    STOP = "stop"  # end-of-sequence token, or one of the job's stop strings
    LENGTH = "length"  # max_tokens were produced


def sources(verb: str) -> list[str]:
    """The states that `verb` may start from, as SQL values."""
    return sorted(state.value for state in TRANSITIONS[verb][0])


class WaitReason(StrEnum):
    """What a job waits for; exactly one holds, the first that applies."""

    DEPENDENCY = "dependency"  # jobs that it depends on
    PREPARING = "preparing"  # its tokens are being counted
    RETRY_BACKOFF = "retry_backoff"  # an attempt failed; the next is made later
    ENGINE_DOWN = "engine_down"  # no engine that could hold it takes jobs now
    NO_ENGINE_FITS = "no_engine_fits"  # no engine of its model is large enough
    RESERVATION = "reservation"  # there is room, but it is kept for a job with a better right to it
    SLOTS = "slots"  # it is next, and all batch slots are taken
    BLOCKS = "blocks"  # it is next or ranks first, and too few KV-cache blocks are free
    ALONE = "alone"  # it is next or ranks first, and runs only on an idle engine, having lost several workers
    BEHIND = "behind"  # others go first
