"""What replies of many routes have in common: pages, what is gone, and examples."""

from collections.abc import Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

Row = TypeVar("Row")
Kind = TypeVar("Kind")


class ListReply(BaseModel, Generic[Row]):
    """One page of a list, as OpenAI's clients walk it."""

    object: Literal["list"]
    data: list[Row]
    first_id: str | None
    last_id: str | None = Field(description="give it as `after` for the next page")
    has_more: bool


class GoneReply(BaseModel, Generic[Kind]):
    """Something that was deleted; `Kind` is the literal that names it."""

    id: str
    object: Kind
    deleted: Literal[True]


def example(**fields: Any) -> ConfigDict:  # noqa: ANN401  # JSON
    """The configuration of a model whose documentation shows these fields."""
    return ConfigDict(json_schema_extra={"examples": [fields]})


def page_example(row: dict[str, Any]) -> ConfigDict:
    """That of a list whose one page has this one row."""
    return example(object="list", data=[row], first_id=row["id"], last_id=row["id"], has_more=False)


def gone_example(row: dict[str, Any]) -> ConfigDict:
    """That of the reply when this row was deleted."""
    return example(id=row["id"], object=row["object"], deleted=True)


class JobError(BaseModel):
    """Why a job failed."""

    code: str = Field(examples=["context_length_exceeded"])
    message: str
    details: dict[str, Any] | None = Field(None, description="numbers that belong to the code")


class ErrorBody(BaseModel):
    """What went wrong."""

    message: str
    type: Literal["invalid_request_error", "server_error", "requests", "tokens", "jobs"] = Field(
        description="the last three name what a limit is about"
    )
    param: str | None = Field(description="dotted name of the wrong field")
    code: str


class ErrorReply(BaseModel):
    """The one shape of every error."""

    model_config = example(
        error={
            "message": "max_tokens: Input should be greater than or equal to 1",
            "type": "invalid_request_error",
            "param": "max_tokens",
            "code": "invalid_value",
        }
    )

    error: ErrorBody


def page(data: Sequence[Mapping[str, Any]], *, has_more: bool) -> dict[str, Any]:
    """One page of a list, as OpenAI's clients walk it."""
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": has_more,
    }
