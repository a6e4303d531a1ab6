"""The types and limits of fields that several routes share."""

from datetime import timedelta
from typing import Final, Literal

from jobs.states import JobState

Seconds = int

MIN_EXPIRY_SECONDS: Final = 3600
MAX_EXPIRY_SECONDS: Final = 2_592_000  # 30 days

WINDOWS: Final = {"1h": timedelta(hours=1), "24h": timedelta(hours=24), "7d": timedelta(days=7)}

Priority = Literal["low", "normal", "high"]
CompletionWindow = Literal["1h", "24h", "7d"]
StateName = Literal[
    "blocked", "preparing", "queued", "running", "completed", "failed", "cancelled", "expired"
]
assert set(StateName.__args__) == set(JobState)  # type: ignore[attr-defined]  # noqa: S101  # literals have args
