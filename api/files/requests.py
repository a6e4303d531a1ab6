"""Requests about files."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from api.http.fields import MAX_EXPIRY_SECONDS, MIN_EXPIRY_SECONDS
from api.http.identifiers import PageQuery
from jobs.validation import Text


class UploadForm(BaseModel):
    """The form of an upload; `file` may come anywhere in it."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"file": '{"custom_id":"a","method":"POST",…}\n', "purpose": "batch"}]
        },
    )

    file: Annotated[
        bytes,
        Field(
            json_schema_extra={"format": "binary"},
            description="Of the purpose `batch`: a file named *.jsonl, or without an extension.",
        ),
    ]
    purpose: Literal["batch", "engine_input"]
    expires_after_anchor: Literal["created_at"] | None = Field(None, alias="expires_after[anchor]")
    expires_after_seconds: int | None = Field(
        None, alias="expires_after[seconds]", ge=MIN_EXPIRY_SECONDS, le=MAX_EXPIRY_SECONDS
    )


class FileListQuery(PageQuery):
    """The files to list, and where to start."""

    purpose: Text | None = None
    limit: int = Field(10_000, ge=1, le=10_000)
    order: Literal["asc", "desc"] = "desc"
