"""The states of a job and the moves between them: the one table from which all else is derived."""

from enum import StrEnum


class JobState(StrEnum):
    """Where a job is in its life; TRANSITIONS lists the moves."""

    # Waits for other jobs of its summary, or for an equal job: `trees.progress` or `sharing` unblocks it.
    BLOCKED = "blocked"
    PREPARING = "preparing"  # a service worker counts its prompt
    QUEUED = "queued"  # an engine may claim it
    RUNNING = "running"  # streams on an engine under a lease; rescued once that expires
    # Final. Jobs are pruned after `jobs.retention_days`; those of a summary go with it.
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"  # its completion window ended first


_S = JobState

# verb -> (the states it may start from, the state it leads to). Guarded UPDATEs read their sources here.
TRANSITIONS: dict[str, tuple[frozenset[JobState], JobState]] = {
    "unblock": (frozenset({_S.BLOCKED}), _S.PREPARING),
    "promote": (frozenset({_S.BLOCKED}), _S.QUEUED),  # a twin takes the place of its leader
    "share": (frozenset({_S.BLOCKED}), _S.COMPLETED),  # a twin gets the result of its leader
    "share_failure": (frozenset({_S.BLOCKED}), _S.FAILED),
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

ACTIVE: frozenset[JobState] = frozenset(state for starts, _ in TRANSITIONS.values() for state in starts)
TERMINAL: frozenset[JobState] = frozenset(_S) - ACTIVE


def sources(verb: str) -> list[str]:
    """Return the states that `verb` may start from, as SQL values."""
    return sorted(state.value for state in TRANSITIONS[verb][0])


class Lane(StrEnum):
    """Whether someone waits for the answer."""

    INTERACTIVE = "interactive"  # the caller waits on an open connection
    BATCH = "batch"  # the caller comes back later


class StopReason(StrEnum):
    """Why a running job should end before the engine is done; `transitions` ranks the reasons."""

    CANCEL = "cancel"
    EXPIRE = "expire"
    PREEMPT = "preempt"
    SHUTDOWN = "shutdown"  # never stored: the worker gives the job back


class AttemptOutcome(StrEnum):
    """How a run of a job ended."""

    COMPLETED = "completed"  # the answer is whole
    FAILED = "failed"  # and with it the job
    RETRIED = "retried"  # it failed, and spent one of the job's attempts
    RELEASED = "released"  # its worker stopped, or its engine could not take it: nothing spent
    RECOUNTED = "recounted"  # its prompt was longer or shorter than counted: nothing was sent
    PREEMPTED = "preempted"  # it made room for the interactive lane
    YIELDED = "yielded"  # it made room for jobs that ran beside it
    LOST = "lost"  # its worker or engine was lost
    CANCELLED = "cancelled"
    EXPIRED = "expired"


class FinishReason(StrEnum):
    """Why generation ended, in OpenAI's words. Only a completed job has one."""

    STOP = "stop"  # end-of-sequence token, or one of the job's stop strings
    LENGTH = "length"  # max_tokens were generated
    TOOL_CALLS = "tool_calls"  # the answer calls functions


class WaitReason(StrEnum):
    """What a job waits for: the first of these that applies."""

    DEPENDENCY = "dependency"  # other jobs of its summary, or an equal job
    PREPARING = "preparing"  # its prompt is not counted yet
    QUEUE_PAUSED = "queue_paused"  # an operator halted its tenant's queue
    RETRY_BACKOFF = "retry_backoff"  # an attempt failed; the next one comes later
    ENGINE_PAUSED = "engine_paused"  # an operator halted every engine that could hold it and is up
    ENGINE_DOWN = "engine_down"  # no engine that could hold it takes jobs now
    NO_ENGINE_FITS = "no_engine_fits"  # no engine of its model is large enough
    RESERVATION = "reservation"  # the free room is kept for a better ranked job
    SLOTS = "slots"  # it is next, but all batch slots are taken
    BLOCKS = "blocks"  # it is next or ranks first, but too few KV-cache blocks are free
    ALONE = "alone"  # it is next or ranks first, but lost so many workers that it needs an idle engine
    BEHIND = "behind"  # other jobs go first
