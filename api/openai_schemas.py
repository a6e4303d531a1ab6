"""What callers of the OpenAI-compatible routes may send."""

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from api.fields import MAX_EXPIRY_SECONDS, MIN_EXPIRY_SECONDS
from jobs.validation import MAX_OUTPUT_TOKENS, MAX_TOP_K, Closed, Metadata, NonEmpty, Stop, Text

_FILE_ID: Final = "file-019c2f3e5a4b7c8d9e0f1a2b3c4d5e6f"


class ExpiresAfter(Closed):
    """How long a file lives."""

    anchor: Literal["created_at"]
    seconds: int = Field(ge=MIN_EXPIRY_SECONDS, le=MAX_EXPIRY_SECONDS)


class EstimateRequest(Closed):
    """What to estimate: nothing is submitted."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"input_file_id": _FILE_ID, "endpoint": "/v1/chat/completions"}]}
    )

    input_file_id: NonEmpty
    endpoint: Literal["/v1/chat/completions", "/v1/completions"]


class BatchRequest(EstimateRequest):
    """A batch to run: every line of the file is a request to the endpoint."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "input_file_id": _FILE_ID,
                    "endpoint": "/v1/chat/completions",
                    "completion_window": "24h",
                    "metadata": {"team": "research"},
                }
            ]
        }
    )

    completion_window: Literal["1h", "24h", "7d"]
    metadata: Metadata | None = None
    output_expires_after: ExpiresAfter | None = Field(
        None, description="life of the result files, from the end of the batch on"
    )
    webhook_url: NonEmpty | None = Field(None, description="told once the batch has ended; https")
    webhook_secret: NonEmpty | None = Field(
        None, description="`whsec_…`, signs what goes there; null: your default does (GET /v1/webhook_secret)"
    )


class GenerateRequest(Closed):
    """A prompt as it is, and how to go on from it."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"prompt": "Once upon", "max_tokens": 64, "temperature": 0.7}]}
    )

    prompt: NonEmpty
    max_tokens: int | None = Field(None, ge=1, le=MAX_OUTPUT_TOKENS)
    temperature: float | None = Field(
        None, ge=0, le=2, description="null: 0, the most likely token each time, as of Triton's `generate`"
    )
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=1, le=MAX_TOP_K)
    seed: int | None = Field(None, ge=0, le=2**63 - 1, description="null: another one for each request")
    stop: Stop | None = None


class UploadForm(BaseModel):
    """The form of an upload; `file` may stand anywhere in it."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"file": '{"custom_id":"a","method":"POST",…}\n', "purpose": "batch"}]
        },
    )

    file: Annotated[bytes, Field(json_schema_extra={"format": "binary"}, description="named *.jsonl")]
    purpose: Literal["batch"]
    expires_after_anchor: Literal["created_at"] | None = Field(None, alias="expires_after[anchor]")
    expires_after_seconds: int | None = Field(
        None, alias="expires_after[seconds]", ge=MIN_EXPIRY_SECONDS, le=MAX_EXPIRY_SECONDS
    )


class FileListQuery(BaseModel):
    """Which files to list, and from where on."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    purpose: Text | None = None
    after: str | None = Field(None, description="id of the last file seen; the list goes on behind it")
    limit: int = Field(10_000, ge=1, le=10_000)
    order: Literal["asc", "desc"] = "desc"


class BatchListQuery(BaseModel):
    """From where on to list batches."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    after: str | None = Field(None, description="id of the last batch seen; the list goes on behind it")
    limit: int = Field(20, ge=1, le=100)
