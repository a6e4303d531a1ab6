"""The states of a batch and the moves between them, in one table."""

from enum import StrEnum


class BatchState(StrEnum):
    """Where a batch is in its life, in OpenAI's words; TRANSITIONS lists the moves."""

    VALIDATING = "validating"  # a worker checks its file; none of its lines runs
    FAILED = "failed"  # its file was refused
    IN_PROGRESS = "in_progress"  # its lines become jobs, which run and end
    FINALIZING = "finalizing"  # every line has ended; a worker completes it next
    COMPLETED = "completed"
    EXPIRED = "expired"  # its window ended before all of its lines did
    CANCELLING = "cancelling"  # its jobs are being stopped
    CANCELLED = "cancelled"


class Endpoint(StrEnum):
    """What every line of a batch asks for."""

    CHAT = "/v1/chat/completions"
    TEXT = "/v1/completions"
    RESPONSES = "/v1/responses"
    EMBEDDINGS = "/v1/embeddings"


_B = BatchState

# verb -> (the states it may start from, the state it leads to).
TRANSITIONS: dict[str, tuple[frozenset[BatchState], BatchState]] = {
    "accept": (frozenset({_B.VALIDATING}), _B.IN_PROGRESS),
    "refuse": (frozenset({_B.VALIDATING}), _B.FAILED),
    "finalize": (frozenset({_B.IN_PROGRESS}), _B.FINALIZING),
    "complete": (frozenset({_B.FINALIZING}), _B.COMPLETED),
    "expire": (frozenset({_B.IN_PROGRESS}), _B.EXPIRED),
    "cancel": (frozenset({_B.VALIDATING, _B.IN_PROGRESS}), _B.CANCELLING),
    "end_cancelled": (frozenset({_B.CANCELLING}), _B.CANCELLED),
}

ACTIVE: frozenset[BatchState] = frozenset(state for starts, _ in TRANSITIONS.values() for state in starts)
TERMINAL: frozenset[BatchState] = frozenset(_B) - ACTIVE
