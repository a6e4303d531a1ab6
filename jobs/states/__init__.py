"""The states of everything that has a life cycle. This package exports those of a job."""

from jobs.states.job import (
    ACTIVE,
    TERMINAL,
    TRANSITIONS,
    AttemptOutcome,
    FinishReason,
    JobState,
    Lane,
    StopReason,
    WaitReason,
    sources,
)
