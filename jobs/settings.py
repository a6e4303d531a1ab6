"""Every setting of Longbatch, read once from LONGBATCH_<GROUP>__<NAME> at each composition root."""

import os
from datetime import timedelta
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

ENV_PREFIX = "LONGBATCH_"
# Read outside this module: the cache of the default tokenizer, and the server that the command line calls.
OTHER_VARIABLES = frozenset({"LONGBATCH_CACHE_DIR", "LONGBATCH_API_URL", "LONGBATCH_API_KEY"})


EngineKind = Literal["auto", "vllm", "llama.cpp", "sglang", "trtllm-serve", "openai"]


class Group(BaseModel):
    """A frozen group of settings that rejects unknown names."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class DatabaseSettings(Group):
    """Postgres, the source of truth."""

    url: SecretStr = Field(description="postgresql://user:password@host:port/name")
    pool_size: int = Field(default=10, ge=1, le=200, description="connections per process")
    pool_timeout_seconds: float = Field(default=5, gt=0, description="wait for a connection; then 503")
    statement_timeout_seconds: float = Field(default=30, gt=0)
    lock_timeout_seconds: float = Field(default=10, gt=0)
    idle_in_transaction_timeout_seconds: float = Field(default=30, gt=0)
    connect_timeout_seconds: int = Field(default=5, ge=1)


class BrokerSettings(Group):
    """Redis or Valkey: doorbells and live output, nothing that must survive."""

    url: SecretStr = Field(description="redis://:password@host:port/0")
    socket_timeout_seconds: float = Field(
        default=3, gt=0, description="without it, a frozen broker would block its callers forever"
    )


class TritonSettings(Group):
    """The Triton server that this worker uses."""

    url: str = Field(default="127.0.0.1:8001", description="gRPC address, host:port")
    http_url: str | None = Field(default=None, description="http://host:port; None: readiness by gRPC alone")
    metrics_url: str | None = Field(default=None, description="http://host:port/metrics; None: no gauges")
    model_name: str = Field(default="tensorrt_llm", description="the model that receives the prompts")
    adapter: Literal["auto", "ids", "llmapi", "ensemble", "bls", "vllm"] = Field(
        default="auto", description="how to call the model; auto: decide by the tensors that it declares"
    )
    streams_fragments: bool = Field(
        default=False,
        description="also stream from text models that decode token by token: gives live output, but breaks"
        " characters that span several tokens",
    )
    fast_keepalive: bool = Field(
        default=True, description="10 s pings; needs the server flags of docs/operations.md"
    )


class EngineSettings(Group):
    """The engine that an inference worker feeds. None: ask the live server at start."""

    name: str = Field(default="default", min_length=1, max_length=64, description="its row in `engines`")
    url: str | None = Field(
        default=None,
        pattern=r"^(grpc|https?)://[^/\s]+/?$",
        description="grpc://host:port of a Triton server, or http(s)://host:port of any other engine; None:"
        " the Triton server of LONGBATCH_TRITON__URL",
    )
    kind: EngineKind = Field(
        default="auto", description="the kind of HTTP engine; auto: ask the server; Triton's: TRITON__ADAPTER"
    )
    api_key: SecretStr | None = Field(default=None, description="sent to an HTTP engine as a bearer token")
    served_model: str | None = Field(
        default=None, min_length=1, description="the model's name at an HTTP engine; None: its only one"
    )
    model: str = Field(default="llama-3.1-8b-instruct", description="the name callers see in `model`")
    max_batch_size: int | None = Field(default=None, ge=1)
    max_blocks: int | None = Field(default=None, ge=1)
    tokens_per_block: int | None = Field(default=None, ge=1)
    blocks_per_sequence: int = Field(
        default=0,
        ge=0,
        description="blocks that every sequence takes besides its text: full windows, recurrent states;"
        " `longbatch engine plan` computes them",
    )
    max_input_len: int = Field(default=96_000, ge=1, description="tokens; the engine does not enforce it")
    max_seq_len: int = Field(default=131_072, ge=2, description="tokens; the engine clamps silently")
    reserve_predicted: bool = Field(
        default=True,
        validation_alias=AliasChoices("reserve_predicted", "book_predicted"),  # the old name
        description="reserve the output that peers make likely and continue in segments; false: reserve"
        " max_tokens, for engines that enforce max_input_len on their input",
    )
    reuses_prefix: bool | None = Field(
        default=None,
        description="the engine still has the tokens of a job that continues at once (KV cache reuse);"
        " None: ask the engine",
    )
    time_scale: float = Field(
        default=1, gt=0, description="how much faster than an A6000 the engine runs; shortens deadlines"
    )

    @field_validator("url")
    @classmethod
    def _has_a_real_port(cls, url: str | None) -> str | None:
        if url is not None and urlsplit(url).port == 0:  # beyond 65535: a ValueError of its own
            raise ValueError("the port of an engine is between 1 and 65535")
        return url

    @field_validator("api_key")
    @classmethod
    def _can_be_sent(cls, key: SecretStr | None) -> SecretStr | None:
        text = key.get_secret_value() if key else ""
        if not (text.isascii() and text.isprintable()):
            raise ValueError("the key goes in a header: printable ASCII only")
        return key

    @model_validator(mode="after")
    def _input_fits_sequence(self) -> Self:
        if self.max_input_len >= self.max_seq_len:
            raise ValueError("engine.max_input_len must be below engine.max_seq_len")
        return self

    @model_validator(mode="after")
    def _kind_fits_url(self) -> Self:
        if self.kind != "auto" and (self.url is None or self.url.startswith("grpc://")):
            raise ValueError("engine.kind is the kind of an HTTP engine, so engine.url must begin with http")
        return self


class TokenizerSettings(Group):
    """The served model's tokenizer."""

    path: str | None = Field(
        default=None, description="directory or name for AutoTokenizer; None: the bundled Llama 3 tokenizer"
    )
    child_memory_mb: int = Field(
        default=1024, ge=128, description="memory of the process that counts a text with no safe cut"
    )
    child_seconds: float = Field(
        default=60, gt=0, le=600, description="time it may take for one text; beyond it: prompt_uncountable"
    )


class ApiSettings(Group):
    """The HTTP service."""

    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    key_cache_seconds: float = Field(
        default=5, ge=0, le=60, description="how long a revoked key may still work"
    )
    max_body_bytes: int = Field(default=8 * 2**20, ge=1024, description="body of a single job; above it: 413")
    max_bulk_bytes: int = Field(default=2**30, ge=1024, description="body of one bulk request")
    max_bulk_lines: int = Field(default=50_000, ge=1)
    inline_count_chars: int = Field(
        default=16_384, ge=0, description="prompts of up to this many characters are counted before the 202"
    )
    head_seconds: float = Field(default=10, gt=0, description="time limit for the request line and headers")
    body_idle_seconds: float = Field(
        default=30, gt=0, description="drop a request whose body sends nothing for this long"
    )
    read_idle_seconds: float = Field(
        default=60, gt=0, description="cut off a caller that reads nothing of its response for this long"
    )
    keep_alive_seconds: int = Field(
        default=5, ge=1, description="when idle connections close; keep it above a load balancer's limit"
    )
    max_connections: int = Field(
        default=10_000, ge=1, description="per process; its limit on open files also bounds it"
    )
    max_streams: int = Field(
        default=100, ge=1, description="open event streams of one tenant, per process; above it: 429"
    )
    recheck_seconds: float = Field(
        default=60, gt=0, description="how often to check the key of an open stream again"
    )


class ConsoleSettings(Group):
    """The console at /console of every API process."""

    enabled: bool = Field(default=True, description="serve it; false: there is no route below /console")
    session_hours: float = Field(default=12, gt=0, le=12, description="then a browser signs in again")
    idle_minutes: float = Field(
        default=60, gt=0, le=60, description="the same after so long without a request"
    )
    code_minutes: float = Field(
        default=10, gt=0, le=60, description="how long a link of `longbatch console` can sign in"
    )

    @property
    def session_lifetime(self) -> timedelta:
        """How long a session lives at most."""
        return timedelta(hours=self.session_hours)

    @property
    def idle_lifetime(self) -> timedelta:
        """How long a session lives without a request."""
        return timedelta(minutes=self.idle_minutes)

    @property
    def code_lifetime(self) -> timedelta:
        """How long a code that signs in once is valid."""
        return timedelta(minutes=self.code_minutes)


class JobSettings(Group):
    """How jobs live, retry and die."""

    max_attempts: int = Field(default=3, ge=1, le=20)
    retry_backoff_seconds: float = Field(default=2, gt=0, description="doubles with every attempt")
    max_rescues: int = Field(default=2, ge=1, description="a job that lost this many workers is suspect")
    lease_seconds: float = Field(default=60, gt=0)
    renew_seconds: float = Field(default=15, gt=0)
    stop_poll_seconds: float = Field(default=0.5, gt=0)
    claim_poll_seconds: float = Field(
        default=1, gt=0, description="how often a worker polls without a doorbell"
    )
    checkpoint_seconds: float = Field(
        default=5, gt=0, description="a lost worker costs a job at most this much of its output"
    )
    shutdown_grace_seconds: float = Field(
        default=5, ge=0, description="for running jobs to finish by themselves"
    )
    drain_seconds: float = Field(
        default=60, gt=0, description="after this, a successful canary ends a draining reservation"
    )
    retention_days: float = Field(default=30, gt=0, description="prune terminal jobs after this")
    idempotency_hours: float = Field(default=24, gt=0)
    share_equal: bool = Field(default=False, description="equal requests run once, unless they say otherwise")

    @model_validator(mode="after")
    def _lease_outlives_renewals(self) -> Self:
        if self.lease_seconds < 3 * self.renew_seconds:
            raise ValueError("jobs.lease_seconds must be at least three times jobs.renew_seconds")
        return self


class FileSettings(Group):
    """Uploaded files and the results of batches."""

    directory: str | None = Field(
        default=None,
        description="keep their bytes here; API and service workers must share it. None: in Postgres",
    )
    url: str | None = Field(
        default=None, description="s3://bucket/prefix instead; keys, endpoint from AWS_…; needs the extra s3"
    )
    max_bytes: int = Field(default=200 * 2**20, ge=1024, description="size of one upload; above it: 413")
    retention_days: float = Field(default=30, gt=0, description="lifetime of files that set none")

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if self.directory is not None and self.url is not None:
            raise ValueError("set one of files.directory and files.url, not both")
        return self


class BatchSettings(Group):
    """OpenAI-compatible batches."""

    max_lines: int = Field(default=50_000, ge=1, le=1_000_000)
    default_max_tokens: int = Field(
        default=4096, ge=1, le=131_072, description="for a line that sets no limit"
    )
    retention_days: float = Field(default=30, gt=0, description="prune finished batches after this")


class DocumentSettings(Group):
    """Documents, and the process that extracts the text of each."""

    max_bytes: int = Field(default=100 * 2**20, ge=1024, description="size of one upload; above it: 413")
    max_pages: int = Field(default=5000, ge=1, le=100_000)
    max_characters: int = Field(default=20_000_000, ge=1, le=200_000_000, description="of extracted text")
    extraction_seconds: float = Field(default=120, gt=0, description="wall-clock time for one document")
    extraction_memory_mb: int = Field(
        default=1024, ge=256, description="address space of the process that reads one document"
    )
    concurrency: int = Field(default=2, ge=1, le=64, description="documents at once, per service worker")
    lease_seconds: float = Field(
        default=30, ge=3, description="then another worker takes over a lost worker's documents"
    )
    retention_days: float = Field(default=30, gt=0, description="prune finished documents after this")


class LimitSettings(Group):
    """Default limits for tenants that have none of their own."""

    max_enqueued_tokens: int = Field(
        default=1_000_000_000, ge=0, description="prompt and max_tokens of all unfinished jobs together"
    )
    max_jobs: int = Field(default=500_000, ge=0, description="unfinished jobs")
    max_requests: int = Field(default=12_000, ge=1, description="per minute")
    max_stored_bytes: int = Field(
        default=0, ge=0, description="prompts, results, files and documents in the database; 0: no limit"
    )


class WebhookSettings(Group):
    """Events delivered to callers' servers. Without a secret and a key, webhooks are refused."""

    secret: SecretStr | None = Field(
        default=None, description="whsec_…; the default tenant's secret until it rotates it"
    )
    encryption_key: SecretStr | None = Field(
        default=None,
        description="base64 of 32 bytes; seals secrets at rest. Separate several by commas, newest first."
        " None: nothing can be sealed, so callers' endpoints and secrets are refused",
    )
    allowed_hosts: tuple[str, ...] = Field(
        default=(), description="hosts that may be private, use plain http and any port"
    )
    deadline_seconds: float = Field(default=15, gt=0)
    concurrency: int = Field(default=256, ge=1, le=1024, description="exchanges at once, per service worker")
    endpoint_concurrency: int = Field(
        default=8, ge=1, le=256, description="exchanges at once with one destination, over all workers"
    )
    server_concurrency: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="the same with one server (scheme, host, port), over all destinations of a tenant there."
        " None: twice endpoint_concurrency",
    )
    max_endpoints: int = Field(default=50, ge=1, le=1000, description="per tenant")
    max_destinations: int = Field(
        default=1000,
        ge=1,
        le=1_000_000,
        description="servers per tenant that requests named in the last hour or that have events waiting",
    )
    breaker_seconds: float = Field(
        default=10, gt=0, description="first pause after five failures in a row; doubles up to 15 minutes"
    )
    disable_days: float = Field(default=5, gt=0, description="disable an endpoint that fails for this long")

    @property
    def max_per_server(self) -> int:
        """Exchanges at once with one server, over all destinations of a tenant there."""
        return self.server_concurrency or 2 * self.endpoint_concurrency


class MaintenanceSettings(Group):
    """The loops of the service worker."""

    prepare_seconds: float = Field(default=0.5, gt=0)
    rescue_seconds: float = Field(default=5, gt=0)
    expire_seconds: float = Field(default=5, gt=0)
    doorbell_seconds: float = Field(default=5, gt=0)
    deliver_seconds: float = Field(default=0.5, gt=0)
    prune_seconds: float = Field(default=300, gt=0)
    document_seconds: float = Field(
        default=1, gt=0, description="how often a worker polls for documents without a doorbell"
    )
    batch_seconds: float = Field(
        default=0.5, gt=0, description="how stale request_counts and result files may be"
    )
    summary_seconds: float = Field(
        default=0.5, gt=0, description="how often to plan summaries whose documents are ready"
    )
    lease_seconds: float = Field(
        default=30, ge=3, description="then others take over a lost worker's prompts, summaries and batches"
    )


class _Groups(BaseSettings):
    """Some groups of the environment."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_nested_delimiter="__",
        frozen=True,
        extra="ignore",
        hide_input_in_errors=True,
    )


class Settings(_Groups):
    """All groups; a misspelt LONGBATCH_ variable is an error."""

    model_config = SettingsConfigDict(extra="forbid")

    database: DatabaseSettings
    broker: BrokerSettings
    triton: TritonSettings = TritonSettings()
    engine: EngineSettings = EngineSettings()
    tokenizer: TokenizerSettings = TokenizerSettings()
    api: ApiSettings = ApiSettings()
    console: ConsoleSettings = ConsoleSettings()
    jobs: JobSettings = JobSettings()
    files: FileSettings = FileSettings()
    batches: BatchSettings = BatchSettings()
    documents: DocumentSettings = DocumentSettings()
    limits: LimitSettings = LimitSettings()
    webhooks: WebhookSettings = WebhookSettings()
    maintenance: MaintenanceSettings = MaintenanceSettings()


class EngineSide(_Groups):
    """The groups that describe the engine, without those of any other server."""

    triton: TritonSettings = TritonSettings()
    engine: EngineSettings = EngineSettings()
    tokenizer: TokenizerSettings = TokenizerSettings()


class _DatabaseOnly(_Groups):
    database: DatabaseSettings


def load() -> Settings:
    """Read this process's settings from the environment.

    Raises:
        ValueError: a value is wrong, or a variable with our prefix is unknown; the message names it.
    """
    known = {f"{ENV_PREFIX}{name.upper()}" for name in Settings.model_fields}
    for name in os.environ:
        if name.startswith(ENV_PREFIX) and name not in OTHER_VARIABLES:
            group = name.split("__", 1)[0]
            if group not in known or "__" not in name:
                raise ValueError(f"unknown setting {name}")
    return Settings()


def load_database() -> DatabaseSettings:
    """Read the database group alone, for migrations, which need no broker.

    Raises:
        ValueError: LONGBATCH_DATABASE__URL is missing or another value of the group is wrong.
    """
    return _DatabaseOnly().database
