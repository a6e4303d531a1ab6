"""Replies about usage, modelled for the API documentation."""

from datetime import date as date_
from typing import Literal

from pydantic import BaseModel, Field

from api.http.fields import example


class UsageDayReply(BaseModel):
    """Usage of one model on one day; a job counts on the day it ended."""

    object: Literal["usage"]
    date: date_
    model: str
    num_jobs: dict[Literal["completed", "failed", "cancelled", "expired"], int]
    prompt_tokens: int = Field(description="Of the jobs that an engine has started.")
    cached_tokens: int = Field(description="Of these, what engines had in their caches, where they tell.")
    completion_tokens: int
    total_tokens: int


class QuotaUsageReply(BaseModel):
    """What your unfinished jobs hold of your quotas now, and the quotas."""

    tokens: int = Field(description="Prompts and max_tokens; an upper bound for prompts not counted yet.")
    max_tokens: int
    jobs: int
    max_jobs: int


class StoredReply(BaseModel):
    """What you keep: prompts, results, files, documents and answers, compressed, until deleted or pruned."""

    bytes: int
    max_bytes: int | None = Field(description="null: no limit.")


class UsageReply(BaseModel):
    """Your usage by day and model, newest first, and what is enqueued and stored now."""

    model_config = example(
        object="list",
        data=[
            {
                "object": "usage",
                "date": "2026-01-31",
                "model": "llama-3.1-8b-instruct",
                "num_jobs": {"completed": 240, "failed": 2, "cancelled": 0, "expired": 0},
                "prompt_tokens": 9_120_377,
                "cached_tokens": 4_302_080,
                "completion_tokens": 61_044,
                "total_tokens": 9_181_421,
            }
        ],
        enqueued={"tokens": 96_512, "max_tokens": 1_000_000_000, "jobs": 1, "max_jobs": 500_000},
        stored={"bytes": 48_206_113, "max_bytes": None},
    )

    object: Literal["list"]
    data: list[UsageDayReply]
    enqueued: QuotaUsageReply
    stored: StoredReply
