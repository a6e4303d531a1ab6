"""Shapes that many replies share: pages, deletions and errors."""

from collections.abc import Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from api.http.fields import example

Row = TypeVar("Row")
Kind = TypeVar("Kind")


class ListReply(BaseModel, Generic[Row]):
    """One page of a list, in the shape that OpenAI's clients page through."""

    object: Literal["list"]
    data: list[Row]
    first_id: str | None
    last_id: str | None = Field(description="Pass it as `after` to get the next page.")
    has_more: bool


class DeletionReply(BaseModel, Generic[Kind]):
    """Confirmation of a deletion."""

    id: str
    object: Kind
    deleted: Literal[True]


class PromptDetails(BaseModel):
    """Prompt tokens by kind."""

    cached_tokens: int = Field(description="What the engine had in its cache when it got the request.")


class CalledFunctionReply(BaseModel):
    """A function that the model calls."""

    name: str
    arguments: str = Field(
        description="JSON as the model wrote it; an answer that max_tokens cut may end within it."
    )


class ToolCallReply(BaseModel):
    """A call of a function."""

    id: str = Field(description="Names the call in the message with its result.")
    type: Literal["function"]
    function: CalledFunctionReply


IF_TOLD: Any = Field(None, description="Left out where the engine does not tell.")


def page_example(row: dict[str, Any]) -> ConfigDict:
    """Return the configuration of a list model whose example page has this one row."""
    return example(object="list", data=[row], first_id=row["id"], last_id=row["id"], has_more=False)


def gone_example(row: dict[str, Any]) -> ConfigDict:
    """Return the configuration of a deletion model whose example deletes this row."""
    return example(id=row["id"], object=row["object"], deleted=True)


class ErrorBody(BaseModel):
    """What went wrong."""

    message: str
    type: Literal["invalid_request_error", "server_error", "requests", "tokens", "jobs"] = Field(
        description="`requests`, `tokens` and `jobs` name the limit that was reached."
    )
    param: str | None = Field(description="Dotted name of the invalid field.")
    code: str
    limit: int | None = Field(None, description="Of quotas: what was reached, in units of `type`.")
    limit_of: Literal["key", "tenant"] | None = Field(None, description="Of quotas: whose limit it is.")


class ErrorReply(BaseModel):
    """The shape of every error."""

    model_config = example(
        error={
            "message": "max_tokens: Input should be greater than or equal to 1.",
            "type": "invalid_request_error",
            "param": "max_tokens",
            "code": "invalid_value",
        }
    )

    error: ErrorBody


def page(data: Sequence[Mapping[str, Any]], *, has_more: bool) -> dict[str, Any]:
    """Return one page of a list, in the shape that OpenAI's clients page through."""
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": has_more,
    }


class TokenLogProbReply(BaseModel):
    """A token and how likely the model found it in its place."""

    token: str = Field(description="One that ends inside a character is written by its bytes.")
    logprob: float = Field(description="-9999.0: as good as impossible.")
    bytes: list[int]


class ScoredTokenReply(TokenLogProbReply):
    """A token of the answer."""

    top_logprobs: list[TokenLogProbReply] = Field(
        description="The most likely tokens in its place, the most likely one first; as many as were asked"
        " for."
    )


class ChatLogProbs(BaseModel):
    """The log probabilities of an answer's tokens."""

    content: list[ScoredTokenReply]
    refusal: None
