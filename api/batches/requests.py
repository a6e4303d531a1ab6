"""What callers may send for batches."""

from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from api.http.fields import MAX_EXPIRY_SECONDS, MIN_EXPIRY_SECONDS
from jobs.validation import Closed, Metadata, NonEmpty

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


class BatchListQuery(BaseModel):
    """From where on to list batches."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    after: str | None = Field(None, description="id of the last batch seen; the list goes on behind it")
    limit: int = Field(20, ge=1, le=100)
