"""The states of summaries and answers, the reasons to end them early, and what callers may choose."""

from enum import StrEnum


class SummaryState(StrEnum):
    """Where a summary is in its life."""

    PREPARING = "preparing"  # waits for its documents, for a plan, or for room in its tenant's quota
    RUNNING = "running"  # its jobs are queued, run and end
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"  # its completion window ended first


class Purpose(StrEnum):
    """What a row of `summaries`, with its jobs, is for."""

    SUMMARY = "summary"
    ANSWERS = "answers"  # a tree for each question; their outputs are settled together


TERMINAL: frozenset[SummaryState] = frozenset(
    {SummaryState.COMPLETED, SummaryState.FAILED, SummaryState.CANCELLED, SummaryState.EXPIRED}
)


class SummaryStop(StrEnum):
    """Why a running summary should end before its tree is done."""

    CANCEL = "cancel"
    EXPIRE = "expire"
    FAIL = "fail"  # a chunk failed for good, and `on_gap` is fail


class OnGap(StrEnum):
    """What to do when a chunk fails for good."""

    SKIP = "skip"  # go on without it, and report the gap
    FAIL = "fail"


class Style(StrEnum):
    """The form of a summary."""

    PARAGRAPH = "paragraph"
    BULLETS = "bullets"
    SECTIONS = "sections"
    TLDR = "tldr"


class NodeKind(StrEnum):
    """What a job of a tree must do; also the name of its template."""

    WHOLE = "whole"  # read a document in one piece
    CHUNK = "map"  # read one chunk
    JOIN = "reduce"  # join the outputs of other nodes


# The `task` of a summary's jobs; their output lengths are predicted by it.
TASKS: dict[NodeKind, str] = {kind: f"summary_{kind.value}" for kind in NodeKind}
# Those of the jobs that answer questions.
ANSWER_TASKS: dict[NodeKind, str] = {kind: f"answer_{kind.value}" for kind in NodeKind}
