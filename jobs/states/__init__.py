"""The states of everything that has a life cycle, and the moves between them; this face shows a job's."""

from jobs.states.job import (
    ACTIVE,
    TERMINAL,
    TRANSITIONS,
    FinishReason,
    JobState,
    Lane,
    StopReason,
    WaitReason,
    sources,
)

__all__ = [
    "ACTIVE",
    "TERMINAL",
    "TRANSITIONS",
    "FinishReason",
    "JobState",
    "Lane",
    "StopReason",
    "WaitReason",
    "sources",
]
