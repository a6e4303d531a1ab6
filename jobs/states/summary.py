"""The words of summaries: their states, how they end early, and what callers may choose."""

from enum import StrEnum


class SummaryState(StrEnum):
    """Where a summary is in its life."""

    PREPARING = "preparing"  # waits for its documents, for a plan, or for room in its tenant's quota
    RUNNING = "running"  # its jobs stand in the queue
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"  # its completion window ended first


TERMINAL: frozenset[SummaryState] = frozenset(
    {SummaryState.COMPLETED, SummaryState.FAILED, SummaryState.CANCELLED, SummaryState.EXPIRED}
)


class SummaryStop(StrEnum):
    """Why a running summary should end before its tree is done."""

    CANCEL = "cancel"
    EXPIRE = "expire"
    FAIL = "fail"  # a chunk failed for good, and the caller wants no gaps


class OnGap(StrEnum):
    """What becomes of a summary when one of its chunks failed for good."""

    SKIP = "skip"  # it goes on without, and names the gap
    FAIL = "fail"


class Style(StrEnum):
    """The form of a summary."""

    PARAGRAPH = "paragraph"
    BULLETS = "bullets"
    SECTIONS = "sections"
    TLDR = "tldr"


class NodeKind(StrEnum):
    """What a job of a tree is asked for; the name of its template too."""

    WHOLE = "whole"  # a document in one piece
    MAP = "map"  # one chunk
    REDUCE = "reduce"  # the summaries of others


# What jobs of trees are called among a tenant's jobs; outputs are predicted by it.
TASKS: dict[NodeKind, str] = {kind: f"summary_{kind.value}" for kind in NodeKind}
