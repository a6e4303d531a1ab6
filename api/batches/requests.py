"""Requests about batches."""

from typing import Final, Literal

from pydantic import Field

from api.http.fields import MAX_EXPIRY_SECONDS, MIN_EXPIRY_SECONDS, example
from jobs.batches.views import EndpointName
from jobs.validation import Closed, CompletionWindow, Metadata, NonEmpty

_FILE_ID: Final = "file-019c2f3e5a4b7c8d9e0f1a2b3c4d5e6f"


class ExpiresAfter(Closed):
    """The lifetime of a file."""

    anchor: Literal["created_at"]
    seconds: int = Field(ge=MIN_EXPIRY_SECONDS, le=MAX_EXPIRY_SECONDS)


class EstimateRequest(Closed):
    """A batch to estimate; nothing is submitted."""

    model_config = example(input_file_id=_FILE_ID, endpoint="/v1/chat/completions")

    input_file_id: NonEmpty
    endpoint: EndpointName


class BatchRequest(EstimateRequest):
    """A batch to run: every line of the file is a request to the endpoint."""

    model_config = example(
        input_file_id=_FILE_ID,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata={"team": "research"},
    )

    completion_window: CompletionWindow
    metadata: Metadata | None = None
    output_expires_after: ExpiresAfter | None = Field(
        None, description="Lifetime of the result files, from the end of the batch."
    )
    webhook_url: NonEmpty | None = Field(None, description="Notified once the batch has ended; https only.")
    webhook_secret: NonEmpty | None = Field(
        None, description="`whsec_…`, signs deliveries; null: your default secret (GET /v1/webhook_secret)."
    )
