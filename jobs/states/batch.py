"""The states of a batch and the moves between them: one table that the rest is built from."""

from enum import StrEnum


class BatchState(StrEnum):
    """Where a batch is in its life, in OpenAI's words; see TRANSITIONS for the moves."""

    VALIDATING = "validating"  # its file is being checked; nothing of it runs
    FAILED = "failed"  # its file could not be accepted
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"  # every line has ended
    COMPLETED = "completed"
    EXPIRED = "expired"  # its window ended before all of its lines
    CANCELLING = "cancelling"  # running lines are being stopped
    CANCELLED = "cancelled"


class Endpoint(StrEnum):
    """What the lines of a batch ask for."""

    CHAT = "/v1/chat/completions"
    TEXT = "/v1/completions"


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

TERMINAL: frozenset[BatchState] = frozenset({_B.FAILED, _B.COMPLETED, _B.EXPIRED, _B.CANCELLED})
ACTIVE: frozenset[BatchState] = frozenset(_B) - TERMINAL
