"""What replies of many routes have in common: pages, what is gone, and examples."""

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
