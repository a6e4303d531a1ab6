"""Queries about responses."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class InputItemQuery(BaseModel):
    """Where to start the list of input items, and how much of it to read."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    after: str | None = Field(None, description="Id of the last one received; the list continues after it.")
    limit: int = Field(20, ge=1, le=100)
    order: Literal["asc", "desc"] = "desc"


class RetrievalQuery(BaseModel):
    """How to read a response."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    stream: bool = Field(False, description="Send the response's events, past and to come.")
    starting_after: int | None = Field(
        None,
        ge=0,
        description="With `stream`: number of the last event received; the stream goes on after it.",
    )
    include: list[Literal["message.output_text.logprobs"]] | None = Field(
        None, alias="include[]", description="No effect: a response has what its request included."
    )
    include_obfuscation: bool = Field(False, description="No event is obfuscated.")
