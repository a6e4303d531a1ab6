"""Requests and replies of the webhook routes."""

from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field

from api.http.fields import example
from api.http.identifiers import PageQuery
from api.http.replies import DeletionReply, ListReply, gone_example, page_example
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
    "response.completed",
    "response.failed",
    "response.cancelled",
    "response.incomplete",
    "summary.completed",
    "summary.failed",
    "summary.cancelled",
    "summary.expired",
    "answers.completed",
    "answers.failed",
    "answers.cancelled",
    "answers.expired",
    "extractions.completed",
    "extractions.failed",
    "extractions.cancelled",
    "extractions.expired",
    "webhook_endpoint.disabled",
]
EventTypes = Annotated[
    list[EventType],
    Field(min_length=1, max_length=32),
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
    """An endpoint that receives events; only `url` is required."""

    model_config = example(url="https://example.com/hooks", events=["batch.completed"])

    url: NonEmpty = Field(description="https on port 443 of a public server.")
    description: Description = ""
    events: EventTypes = Field(["*"], description="`*`: all except job.started.")
    include_output: bool = Field(False, description="Include outputs of up to 16 KiB in job events.")
    secret: NonEmpty | None = Field(None, description="`whsec_…`; null: a new one is generated.")
    enabled: bool = True


class EndpointUpdate(Closed):
    """The fields to update; the others keep their values."""

    model_config = example(enabled=True)

    url: NonEmpty | None = None
    description: Description | None = None
    events: EventTypes | None = None
    include_output: bool | None = None
    enabled: bool | None = Field(
        None, description="True also re-enables an endpoint disabled for its failures."
    )


class DeliveryListQuery(PageQuery):
    """The deliveries to list, and where to start."""

    endpoint_id: str | None = None
    event_id: str | None = None
    outcome: Literal["delivered", "failed"] | None = None


class ReplayQuery(BaseModel):
    """Where in time to start a replay."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    since: AwareDatetime | None = Field(
        None, description="RFC 3339 with a time zone, or seconds since 1970; null: every event still kept."
    )


class EndpointReply(BaseModel):
    """An endpoint and its delivery health."""

    model_config = example(**_ENDPOINT)

    id: str
    object: Literal["webhook_endpoint"]
    url: str
    description: str
    events: list[EventType]
    include_output: bool
    enabled: bool
    disabled_reason: Literal["failing", "gone", "owner"] | None = Field(
        description="failing: deliveries failed for days; gone: it answered 410; owner: you disabled it."
    )
    disabled_at: datetime | None
    num_failures: int = Field(description="Consecutive failures so far.")
    failing_since: datetime | None
    paused_until: datetime | None = Field(description="Deliveries to it pause until then.")
    old_secret_expires_at: datetime | None = Field(description="Until then the previous secret also signs.")
    created_at: datetime


class EndpointSecretReply(EndpointReply):
    """An endpoint with its new secret, which is shown only once."""

    model_config = example(**_ENDPOINT | {"secret": "whsec_…"})

    secret: str


class EndpointListReply(ListReply[EndpointReply]):
    """One page of endpoints, newest first."""

    model_config = page_example(_ENDPOINT)

    last_id: str | None


class DeletedEndpointReply(DeletionReply[Literal["webhook_endpoint"]]):
    """An endpoint that was deleted."""

    model_config = gone_example(_ENDPOINT)


class QueuedEventReply(BaseModel):
    """An event queued for delivery."""

    id: str = Field(examples=["evt_019c2f3e5a4b7c8d9e0f1a2b3c4d5e6f"])
    object: Literal["event"]
    type: str


class ReplayReply(BaseModel):
    """What a replay queued for delivery."""

    model_config = example(object="webhook_replay", num_deliveries=42, next_since=None, num_over_limit=0)

    object: Literal["webhook_replay"]
    num_deliveries: int
    next_since: datetime | None = Field(
        description="Replay again from here for the events that did not fit; null: none are left."
    )
    num_over_limit: int = Field(
        description="Deliveries left out: an event is replayed to a destination at most 100 times."
    )


class SecretReply(BaseModel):
    """The secret that signs deliveries to webhook URLs given without a secret."""

    object: Literal["webhook_secret"]
    secret: str = Field(examples=["whsec_…"])
    old_secret_expires_at: datetime | None


class DeliveryReply(BaseModel):
    """One attempt to deliver an event. Of the response only status and size are kept."""

    id: str
    object: Literal["webhook_delivery"]
    event_id: str
    event_type: str
    endpoint_id: str | None = Field(description="Null: it went to the URL that the job or batch specified.")
    attempt: int
    outcome: str = Field(description="`delivered`, `bad_status`, or why there was no response.")
    status: int | None
    response_bytes: int
    latency_ms: int
    created_at: datetime


class DeliveryListReply(ListReply[DeliveryReply]):
    """One page of deliveries, newest first."""

    model_config = page_example(_DELIVERY)

    last_id: str | None
