"""What callers of the webhook routes send and get back."""

from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field

from api.http.replies import GoneReply, ListReply, example, gone_example, page_example
from jobs.validation import Closed, NonEmpty, Text

MAX_OVERLAP_SECONDS: Final = 7 * 24 * 3600
DEFAULT_OVERLAP_SECONDS: Final = 24 * 3600

EventType = Literal[
    "*",
    "job.started",
    "job.completed",
    "job.failed",
    "job.cancelled",
    "job.expired",
    "batch.completed",
    "batch.failed",
    "batch.cancelled",
    "batch.expired",
    "summary.completed",
    "summary.failed",
    "summary.cancelled",
    "summary.expired",
    "webhook_endpoint.disabled",
]
EventTypes = Annotated[
    list[EventType],
    Field(min_length=1, max_length=16),
    AfterValidator(lambda given: list(dict.fromkeys(given))),
]
Description = Annotated[Text, Field(max_length=512)]

_ENDPOINT: Final[dict[str, Any]] = {
    "id": "whep_019c2f3e5a4b7c8d9e0f1a2b3c4d5e6f",
    "object": "webhook_endpoint",
    "url": "https://example.com/hooks",
    "description": "",
    "events": ["*"],
    "include_output": False,
    "enabled": True,
    "disabled_reason": None,
    "disabled_at": None,
    "num_failures": 0,
    "failing_since": None,
    "paused_until": None,
    "old_secret_expires_at": None,
    "created_at": "2026-01-31T12:00:00.123456Z",
}

_DELIVERY: Final[dict[str, Any]] = {
    "id": "whdl_019c2f3e5a4b7c8d9e0f1a2b3c4d5e6f",
    "object": "webhook_delivery",
    "event_id": "evt_019c2f3e5a4b7c8d9e0f1a2b3c4d5e6f",
    "event_type": "batch.completed",
    "endpoint_id": _ENDPOINT["id"],
    "attempt": 1,
    "outcome": "delivered",
    "status": 204,
    "response_bytes": 91,
    "latency_ms": 84,
    "created_at": "2026-01-31T12:00:00.123456Z",
}


class EndpointRequest(Closed):
    """An endpoint to be told; only `url` is required."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"url": "https://example.com/hooks", "events": ["batch.completed"]}]}
    )

    url: NonEmpty = Field(description="https, on port 443, a public server")
    description: Description = ""
    events: EventTypes = Field(["*"], description="`*`: all but job.started")
    include_output: bool = Field(False, description="outputs of up to 16 KiB come with job events")
    secret: NonEmpty | None = Field(None, description="`whsec_…`; null: a new one is made")
    enabled: bool = True


class EndpointUpdate(Closed):
    """Fields to change; the others stay."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"enabled": True}]})

    url: NonEmpty | None = None
    description: Description | None = None
    events: EventTypes | None = None
    include_output: bool | None = None
    enabled: bool | None = Field(None, description="true also enables one that was disabled for its failures")


class EndpointListQuery(BaseModel):
    """From where on to list endpoints."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    after: str | None = Field(None, description="id of the last one seen; the list goes on behind it")
    limit: int = Field(20, ge=1, le=100)


class DeliveryListQuery(EndpointListQuery):
    """Which deliveries to list, and from where on."""

    endpoint_id: str | None = None
    event_id: str | None = None
    outcome: Literal["delivered", "failed"] | None = None


class ReplayQuery(BaseModel):
    """From when on to replay."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    since: AwareDatetime | None = Field(
        None, description="RFC 3339 with a time zone, or seconds since 1970; null: all that is kept"
    )


class EndpointReply(BaseModel):
    """An endpoint, and how it does."""

    model_config = ConfigDict(json_schema_extra={"examples": [_ENDPOINT]})

    id: str
    object: Literal["webhook_endpoint"]
    url: str
    description: str
    events: list[EventType]
    include_output: bool
    enabled: bool
    disabled_reason: Literal["failing", "gone", "owner"] | None = Field(
        description="failing: for days; gone: it answered 410; owner: you did it"
    )
    disabled_at: datetime | None
    num_failures: int = Field(description="in a row, up to now")
    failing_since: datetime | None
    paused_until: datetime | None = Field(description="nothing is sent there before")
    old_secret_expires_at: datetime | None = Field(description="until then the secret before signs too")
    created_at: datetime


class EndpointSecretReply(EndpointReply):
    """An endpoint with its new secret, which is shown this once."""

    model_config = ConfigDict(json_schema_extra={"examples": [_ENDPOINT | {"secret": "whsec_…"}]})

    secret: str


class EndpointListReply(ListReply[EndpointReply]):
    """One page of endpoints, newest first."""

    model_config = page_example(_ENDPOINT)

    last_id: str | None


class DeletedEndpointReply(GoneReply[Literal["webhook_endpoint"]]):
    """An endpoint that is gone."""

    model_config = gone_example(_ENDPOINT)


class QueuedEventReply(BaseModel):
    """An event that is on its way."""

    id: str = Field(examples=["evt_019c2f3e5a4b7c8d9e0f1a2b3c4d5e6f"])
    object: Literal["event"]
    type: str


class ReplayReply(BaseModel):
    """What is on its way again."""

    model_config = example(object="webhook_replay", num_deliveries=42, next_since=None, num_over_limit=0)

    object: Literal["webhook_replay"]
    num_deliveries: int
    next_since: datetime | None = Field(
        description="replay from here on for what did not fit; null: that was all"
    )
    num_over_limit: int = Field(
        description="deliveries left out: an event is replayed 100 times to a destination at most"
    )


class SecretReply(BaseModel):
    """What signs deliveries to URLs that jobs and batches name without a secret of their own."""

    object: Literal["webhook_secret"]
    secret: str = Field(examples=["whsec_…"])
    old_secret_expires_at: datetime | None


class DeliveryReply(BaseModel):
    """One try to tell an event. Of the answer only its status and size are kept."""

    id: str
    object: Literal["webhook_delivery"]
    event_id: str
    event_type: str
    endpoint_id: str | None = Field(description="null: the URL that the job or batch named")
    attempt: int
    outcome: str = Field(description="`delivered`, `bad_status`, or why there was no answer")
    status: int | None
    response_bytes: int
    latency_ms: int
    created_at: datetime


class DeliveryListReply(ListReply[DeliveryReply]):
    """One page of deliveries, newest first."""

    model_config = page_example(_DELIVERY)

    last_id: str | None
