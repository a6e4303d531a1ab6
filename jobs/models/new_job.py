"""A job before it is a row: what those who submit it choose."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar
from uuid import UUID

from jobs.ids import uuid7
from jobs.models import Address, JsonObject
from jobs.states import JobState


@dataclass(slots=True, kw_only=True)
class NewJob:
    """A job that is about to be inserted with others, in one statement. `Job` describes the fields.

    Those that no new job has are here for readers of either.
    """

    cached_tokens: ClassVar[None] = None
    completion_tokens: ClassVar[int] = 0
    finish_reason: ClassVar[None] = None
    attempt: ClassVar[int] = 0
    stop_reason: ClassVar[None] = None
    started_at: ClassVar[None] = None
    first_token_at: ClassVar[None] = None
    id: UUID = field(default_factory=uuid7)
    tenant_id: UUID
    text_id: UUID
    state: str = JobState.PREPARING.value
    lane: str
    rank: int
    task: str
    model: str
    max_tokens: int
    prompt_tokens: int | None = None
    reserved_tokens: int = 0
    sampling: JsonObject
    created_at: datetime
    guide_id: UUID | None = None
    adapter: str | None = None
    is_whole: bool = False
    custom_id: str | None = None
    labels: JsonObject
    webhook_url: str | None = None
    webhook_secret: bytes | None = None
    webhook_includes_output: bool = False
    expires_at: datetime | None = None
    batch_id: UUID | None = None
    batch_line: int | None = None
    choice: int = 0
    num_choices: int | None = None
    family: bytes | None = None
    error: JsonObject | None = None
    finalized_at: datetime | None = None
    request_digest: bytes | None = None
    traceparent: str | None = None
    api_key_id: UUID | None = None

    @property
    def address(self) -> str:
        """What callers name in `model`."""
        return str(Address(self.model, self.adapter))
