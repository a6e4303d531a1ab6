"""The states of summaries, answers and extractions, why they end early, and what callers may choose."""

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
    EXTRACTION = "extraction"  # a job for each part; settled like answers


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
# Those of the jobs that extract fields; nothing joins them but rules.
EXTRACTION_TASKS: dict[NodeKind, str] = {
    kind: f"extraction_{kind.value}" for kind in (NodeKind.WHOLE, NodeKind.CHUNK)
}


class JoinRule(StrEnum):
    """How the values that parts of a document say of a field become one."""

    FIRST = "first"
    ALL = "all"  # the elements of all lists, equal ones once
    SUM = "sum"
    MOST_FREQUENT = "most_frequent"  # of several equally frequent values the first
