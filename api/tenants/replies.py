"""What callers get back about their use, described for the API's documentation."""

from datetime import date as date_
from typing import Literal

from pydantic import BaseModel, Field

from api.http.replies import example


class UsageDayReply(BaseModel):
    """A day's jobs of one model, by the day on which they ended."""

    object: Literal["usage"]
    date: date_
    model: str
    num_jobs: dict[Literal["completed", "failed", "cancelled", "expired"], int]
    prompt_tokens: int = Field(description="of the jobs that an engine has begun")
    completion_tokens: int
    total_tokens: int


class EnqueuedReply(BaseModel):
    """What your unfinished jobs hold now, and what they may hold."""

    tokens: int = Field(description="prompts and max_tokens; a bound in place of a prompt not counted yet")
    max_tokens: int
    jobs: int
    max_jobs: int


class UsageReply(BaseModel):
    """Your use by day and model, newest first, and what is enqueued now."""

    model_config = example(
        object="list",
        data=[
            {
                "object": "usage",
                "date": "2026-01-31",
                "model": "llama-3.1-8b-instruct",
                "num_jobs": {"completed": 240, "failed": 2, "cancelled": 0, "expired": 0},
                "prompt_tokens": 9_120_377,
                "completion_tokens": 61_044,
                "total_tokens": 9_181_421,
            }
        ],
        enqueued={"tokens": 96_512, "max_tokens": 1_000_000_000, "jobs": 1, "max_jobs": 500_000},
    )

    object: Literal["list"]
    data: list[UsageDayReply]
    enqueued: EnqueuedReply
