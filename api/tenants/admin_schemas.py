"""Requests and replies about tenants and keys, for operators."""

from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from api.http.fields import example
from api.http.halts import HaltReply
from api.http.replies import ListReply, page_example
from jobs.tenants.keys import Scope
from jobs.validation import Closed, Line, NonEmpty

_BIGGEST: Final = 2**63 - 1
_BIG: Final = 2**31 - 1
_TEN_YEARS: Final = 3650 * 86_400
_MAX_OVERLAP: Final = 90 * 86_400

_LIMITS: Final[dict[str, Any]] = {
    "max_enqueued_tokens": None,
    "max_jobs": 20_000,
    "max_requests": None,
    "max_stored_bytes": None,
}
_TENANT: Final[dict[str, Any]] = {
    "id": "tenant_019c2f3e5a4b7c8d9e0f1a2b3c4d5e6f",
    "object": "tenant",
    "name": "research",
    "weight": 2.0,
    "limits": _LIMITS,
    "effective_limits": {
        "max_enqueued_tokens": 1_000_000_000,
        "max_jobs": 20_000,
        "max_requests": 1200,
        "max_stored_bytes": 0,
    },
    "queue": {"state": "running", "reason": None, "by": None, "since": None},
    "zero_retention_seconds": None,
    "deletion": None,
    "created_at": "2026-01-31T12:00:00.123456Z",
}
_KEY: Final[dict[str, Any]] = {
    "id": "lb_3f9a1c2b4d5e6f70",
    "object": "api_key",
    "tenant_id": _TENANT["id"],
    "tenant": "research",
    "name": "nightly batches",
    "scopes": ["read", "submit"],
    "state": "valid",
    "limits": {"max_enqueued_tokens": None, "max_jobs": 1000, "max_requests": 600},
    "enqueued": {"tokens": 96_512, "jobs": 1},
    "created_at": "2026-01-31T12:00:00.123456Z",
    "expires_at": None,
    "revoked_at": None,
    "last_used_at": "2026-01-31T12:04:00Z",
}

Weight = Annotated[
    float, Field(ge=0.001, le=1_000_000, description="Share of an engine relative to other tenants.")
]


ZeroRetention = Annotated[
    int,
    Field(
        ge=60,
        le=30 * 86_400,
        description="Prompts and results go once they were delivered, at the latest after so long.",
    ),
]


class LimitsRequest(Closed):
    """A tenant's own limits; one left out stays as it is, null takes it back to the setting."""

    max_enqueued_tokens: int | None = Field(None, ge=0, le=_BIGGEST)
    max_jobs: int | None = Field(None, ge=0, le=_BIG)
    max_requests: int | None = Field(None, ge=1, le=_BIG, description="In a minute.")
    max_stored_bytes: int | None = Field(None, ge=0, le=_BIGGEST, description="0: any amount.")


class TenantRequest(Closed):
    """A new tenant, which has no keys yet."""

    model_config = example(name="research", weight=2.0, limits={"max_jobs": 20_000})

    name: NonEmpty = Field(
        max_length=63, description="Letters, digits, `.`, `_` and `-`; unique, and never changed."
    )
    weight: Weight = 1.0
    limits: LimitsRequest = LimitsRequest()
    zero_retention_seconds: ZeroRetention | None = Field(None, description="Null: they stay.")


class TenantUpdate(Closed):
    """The fields to update; the others keep their values."""

    model_config = example(limits={"max_requests": 600, "max_jobs": None})

    weight: Weight | None = None
    limits: LimitsRequest = LimitsRequest()
    zero_retention_seconds: ZeroRetention | None = Field(
        None, description="Null: prompts and results stay. Left out: as it is."
    )


class KeyLimitsRequest(Closed):
    """A key's own limits; one left out stays as it is, null takes it back. Its tenant's always hold too."""

    max_enqueued_tokens: int | None = Field(
        None,
        ge=0,
        le=_BIGGEST,
        description="Prompts and max_tokens of the unfinished jobs that it submitted.",
    )
    max_jobs: int | None = Field(None, ge=0, le=_BIG, description="Unfinished jobs that it submitted.")
    max_requests: int | None = Field(None, ge=1, le=_BIG, description="In a minute.")


class KeyRequest(Closed):
    """A new key; only `tenant` is required."""

    model_config = example(
        tenant="research",
        name="nightly batches",
        scopes=["submit", "read"],
        limits={"max_requests": 600, "max_jobs": 1000},
    )

    tenant: NonEmpty = Field(description="Id or name of its tenant.")
    name: Annotated[Line, Field(max_length=200)] | None = Field(None, description="A name for yourself.")
    scopes: list[Scope] = Field([Scope.SUBMIT, Scope.READ], min_length=1, max_length=16)
    expires_in_seconds: int | None = Field(None, ge=60, le=_TEN_YEARS, description="Null: never.")
    limits: KeyLimitsRequest = KeyLimitsRequest()


class KeyUpdate(Closed):
    """The limits to update."""

    model_config = example(limits={"max_requests": None})

    limits: KeyLimitsRequest = KeyLimitsRequest()


class RotateQuery(BaseModel):
    """How long both keys are valid."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    overlap_seconds: int = Field(86_400, ge=0, le=_MAX_OVERLAP)


class AdminListQuery(BaseModel):
    """Where to start a list."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    after: str | None = Field(None, description="Id of the last one received; the list continues after it.")
    limit: int = Field(20, ge=1, le=100)


class KeyListQuery(AdminListQuery):
    """The keys to list, and where to start."""

    tenant: str | None = Field(None, description="Only this tenant's, by id or name.")


class OwnLimitsReply(BaseModel):
    """A tenant's own limits; null: the setting holds."""

    max_enqueued_tokens: int | None
    max_jobs: int | None
    max_requests: int | None
    max_stored_bytes: int | None


class EffectiveLimitsReply(BaseModel):
    """The limits that hold."""

    max_enqueued_tokens: int
    max_jobs: int
    max_requests: int
    max_stored_bytes: int = Field(description="0: any amount.")


class TenantDeletionReply(BaseModel):
    """How far the deletion of a tenant is."""

    ordered_at: datetime
    num_removed: int = Field(description="Rows removed so far, without those that went with others.")


class TenantReply(BaseModel):
    """A tenant."""

    model_config = example(**_TENANT)

    id: str
    object: Literal["tenant"]
    name: str
    weight: float
    limits: OwnLimitsReply
    effective_limits: EffectiveLimitsReply
    queue: HaltReply
    zero_retention_seconds: int | None = Field(
        description="Prompts and results go once they were delivered, at the latest after so long. Null: they"
        " stay."
    )
    deletion: TenantDeletionReply | None = Field(description="Null: it is not being deleted.")
    created_at: datetime


class TenantListReply(ListReply[TenantReply]):
    """One page of tenants, newest first."""

    model_config = page_example(_TENANT)

    last_id: str | None


class KeyLimitsReply(BaseModel):
    """A key's own limits; null: what its tenant may."""

    max_enqueued_tokens: int | None
    max_jobs: int | None
    max_requests: int | None


class KeyEnqueuedReply(BaseModel):
    """What the unfinished jobs hold now that a key submitted."""

    tokens: int = Field(description="Prompts and max_tokens; an upper bound for prompts not counted yet.")
    jobs: int


class KeyReply(BaseModel):
    """A key, without its secret."""

    model_config = example(**_KEY)

    id: str = Field(description="The public part of the key.")
    object: Literal["api_key"]
    tenant_id: str
    tenant: str = Field(description="The tenant's name.")
    name: str
    scopes: list[Scope]
    state: Literal["valid", "expired", "revoked"]
    limits: KeyLimitsReply
    enqueued: KeyEnqueuedReply
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None = Field(description="To the minute.")


class KeySecretReply(KeyReply):
    """A key with its secret, which is shown only once."""

    model_config = example(**_KEY | {"api_key": "lb_3f9a1c2b4d5e6f70_…"})

    api_key: str


class KeyListReply(ListReply[KeyReply]):
    """One page of keys, newest first."""

    model_config = page_example(_KEY)

    last_id: str | None
