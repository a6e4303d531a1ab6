"""Queries about responses."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class InputItemQuery(BaseModel):
    """Where to start the list of input items, and how much of it to read."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    after: str | None = Field(None, description="Id of the last one received; the list continues after it.")
    limit: int = Field(20, ge=1, le=100)
    order: Literal["asc", "desc"] = "desc"
