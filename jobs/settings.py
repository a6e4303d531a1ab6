"""Every setting of Longbatch, read once from LONGBATCH_<GROUP>__<NAME> at each composition root."""

import os
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

ENV_PREFIX = "LONGBATCH_"
# Read by other parts than this module: the cache of the default tokenizer, and the command line's server.
OTHER_VARIABLES = frozenset({"LONGBATCH_CACHE_DIR", "LONGBATCH_API_URL", "LONGBATCH_API_KEY"})


class Group(BaseModel):
    """A frozen group of settings that refuses names it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class DatabaseSettings(Group):
    """Postgres, where the truth is."""

    url: SecretStr = Field(description="postgresql://user:password@host:port/name")
    pool_size: int = Field(default=10, ge=1, le=200, description="connections per process")
    pool_timeout_seconds: float = Field(default=5, gt=0, description="a full pool answers 503 after this")
    statement_timeout_seconds: float = Field(default=30, gt=0)
    lock_timeout_seconds: float = Field(default=10, gt=0)
    idle_in_transaction_timeout_seconds: float = Field(default=30, gt=0)
    connect_timeout_seconds: int = Field(default=5, ge=1)


class BrokerSettings(Group):
    """Redis or Valkey: doorbells and live output, nothing that must survive."""

    url: SecretStr = Field(description="redis://:password@host:port/0")
    socket_timeout_seconds: float = Field(
        default=3, gt=0, description="a frozen broker would block for ever without it"
    )


class TritonSettings(Group):
    """The Triton server of this worker."""

    url: str = Field(default="127.0.0.1:8001", description="gRPC address, host:port")
    http_url: str | None = Field(default=None, description="http://host:port; None: readiness over gRPC only")
    metrics_url: str | None = Field(default=None, description="http://host:port/metrics; None: no gauges")
    model_name: str = Field(default="tensorrt_llm", description="the model that is sent prompts")
    adapter: Literal["auto", "ids", "ensemble", "bls", "vllm"] = Field(
        default="auto", description="how it is asked; auto: by the tensors that it declares"
    )
    streams_fragments: bool = Field(
        default=False,
        description="stream also from text models that decode token by token: live output, but characters of"
        " several tokens come out broken",
    )
    fast_keepalive: bool = Field(
        default=True, description="10 s pings; needs the server flags of docs/operations.md"
    )


class EngineSettings(Group):
    """The engine that an inference worker feeds. None: read from the live server at start."""

    name: str = Field(default="default", min_length=1, max_length=64, description="its row in `engines`")
    model: str = Field(default="llama-3.1-8b-instruct", description="the name callers see in `model`")
    max_batch_size: int | None = Field(default=None, ge=1)
    max_blocks: int | None = Field(default=None, ge=1)
    tokens_per_block: int | None = Field(default=None, ge=1)
    max_input_len: int = Field(default=96_000, ge=1, description="tokens; the engine does not enforce it")
    max_seq_len: int = Field(default=131_072, ge=2, description="tokens; the engine clamps in silence")
    book_predicted: bool = Field(
        default=True,
        description="book the output that peers make likely and go on in segments; false: book max_tokens,"
        " for engines that enforce max_input_len on what they are sent",
    )
    reuses_prefix: bool = Field(
        default=True,
        description="the engine still has the tokens of a job that goes on at once (KV cache reuse)",
    )
    time_scale: float = Field(
        default=1, gt=0, description="how much faster than an A6000 the engine runs; shortens deadlines"
    )

    @model_validator(mode="after")
    def _input_fits_sequence(self) -> Self:
        if self.max_input_len >= self.max_seq_len:
            raise ValueError("engine.max_input_len must be below engine.max_seq_len")
        return self


class TokenizerSettings(Group):
    """The served model's tokenizer."""

    path: str | None = Field(
        default=None, description="directory or name for AutoTokenizer; None: the bundled Llama 3 tokenizer"
    )
    child_memory_mb: int = Field(
        default=1024, ge=128, description="of the process that counts a text which cannot be cut"
    )
    child_seconds: float = Field(
        default=60, gt=0, le=600, description="that it may take for one text; above it: prompt_uncountable"
    )


class ApiSettings(Group):
    """The HTTP service."""

    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    key_cache_seconds: float = Field(
        default=5, ge=0, le=60, description="a revoked key works for so long at most"
    )
    max_body_bytes: int = Field(default=8 * 2**20, ge=1024, description="of a single job; above it: 413")
    max_bulk_bytes: int = Field(default=2**30, ge=1024, description="of one bulk request")
    max_bulk_lines: int = Field(default=50_000, ge=1)
    inline_count_chars: int = Field(
        default=16_384, ge=0, description="up to this many characters a prompt is counted before the 202"
    )
    head_seconds: float = Field(
        default=10, gt=0, description="the line and the headers of a request may take so long"
    )
    body_idle_seconds: float = Field(
        default=30, gt=0, description="a body of which nothing comes for so long is given up"
    )
    read_idle_seconds: float = Field(
        default=60, gt=0, description="a caller that takes nothing of its answer for so long is cut off"
    )
    keep_alive_seconds: int = Field(
        default=5, ge=1, description="idle connections are closed; above a load balancer's own limit"
    )
    max_connections: int = Field(
        default=10_000, ge=1, description="per process, and no more than its limit of open files allows"
    )
    max_streams: int = Field(
        default=100, ge=1, description="server-sent events of one tenant at once, per process; above it: 429"
    )
    recheck_seconds: float = Field(
        default=60, gt=0, description="how often the key of an open stream is looked at again"
    )


class JobSettings(Group):
    """How jobs live, retry and die."""

    max_attempts: int = Field(default=3, ge=1, le=20)
    retry_backoff_seconds: float = Field(default=2, gt=0, description="doubles with every attempt")
    max_rescues: int = Field(default=2, ge=1, description="after so many lost workers the job is suspect")
    lease_seconds: float = Field(default=60, gt=0)
    renew_seconds: float = Field(default=15, gt=0)
    stop_poll_seconds: float = Field(default=0.5, gt=0)
    claim_poll_seconds: float = Field(
        default=1, gt=0, description="how often a worker looks without doorbell"
    )
    checkpoint_seconds: float = Field(
        default=5, gt=0, description="a lost worker costs a job at most this much of its output"
    )
    shutdown_grace_seconds: float = Field(default=5, ge=0, description="running jobs may end on their own")
    drain_seconds: float = Field(
        default=60, gt=0, description="after it a draining reservation goes once a canary succeeds"
    )
    retention_days: float = Field(default=30, gt=0, description="terminal jobs are pruned after it")
    idempotency_hours: float = Field(default=24, gt=0)

    @model_validator(mode="after")
    def _lease_outlives_renewals(self) -> Self:
        if self.lease_seconds < 3 * self.renew_seconds:
            raise ValueError("jobs.lease_seconds must be at least three times jobs.renew_seconds")
        return self


class FileSettings(Group):
    """Uploaded files and the results of batches."""

    directory: str | None = Field(
        default=None,
        description="their bytes are kept there; API and service workers must share it. None: in Postgres",
    )
    url: str | None = Field(
        default=None, description="s3://bucket/prefix instead; keys and endpoint by AWS_…, needs the extra s3"
    )
    max_bytes: int = Field(default=200 * 2**20, ge=1024, description="of one upload; above it: 413")
    retention_days: float = Field(default=30, gt=0, description="files without a life of their own go then")

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if self.directory is not None and self.url is not None:
            raise ValueError("set one of files.directory and files.url, not both")
        return self


class BatchSettings(Group):
    """OpenAI-compatible batches."""

    max_lines: int = Field(default=50_000, ge=1, le=1_000_000)
    default_max_tokens: int = Field(
        default=4096, ge=1, le=131_072, description="of a line that names no limit"
    )
    retention_days: float = Field(default=30, gt=0, description="batches that have ended are pruned then")


class DocumentSettings(Group):
    """Documents, and the process that takes the text out of each."""

    max_bytes: int = Field(default=100 * 2**20, ge=1024, description="of one upload; above it: 413")
    max_pages: int = Field(default=5000, ge=1, le=100_000)
    max_characters: int = Field(default=20_000_000, ge=1, le=200_000_000, description="of the text")
    extraction_seconds: float = Field(default=120, gt=0, description="of one document, by the clock")
    extraction_memory_mb: int = Field(
        default=1024, ge=256, description="address space of the process of one document"
    )
    concurrency: int = Field(default=2, ge=1, le=64, description="documents at once, per service worker")
    lease_seconds: float = Field(
        default=30, ge=3, description="a lost worker's documents are taken up again after it"
    )
    retention_days: float = Field(default=30, gt=0, description="documents are gone so long after their end")


class LimitSettings(Group):
    """What each tenant may ask for unless it has limits of its own."""

    max_enqueued_tokens: int = Field(
        default=1_000_000_000, ge=0, description="prompt and max_tokens of all unfinished jobs together"
    )
    max_jobs: int = Field(default=500_000, ge=0, description="unfinished ones")
    max_requests: int = Field(default=12_000, ge=1, description="in a minute")


class WebhookSettings(Group):
    """Events, told to callers' servers. Without secret and key, webhooks are refused."""

    secret: SecretStr | None = Field(
        default=None, description="whsec_…; the default tenant's secret until it rotates it"
    )
    encryption_key: SecretStr | None = Field(
        default=None,
        description="base64 of 32 bytes; seals secrets at rest. Several, newest first: comma between."
        " None: nothing is sealed, so endpoints and secrets of callers are refused",
    )
    allowed_hosts: tuple[str, ...] = Field(
        default=(), description="hosts that may be private, plain http and on any port"
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
    max_endpoints: int = Field(default=50, ge=1, le=1000, description="of a tenant")
    max_destinations: int = Field(
        default=1000,
        ge=1,
        le=1_000_000,
        description="servers of a tenant that requests named in the last hour, or where events wait",
    )
    breaker_seconds: float = Field(
        default=10, gt=0, description="first pause after five failures in a row; doubles up to 15 minutes"
    )
    disable_days: float = Field(default=5, gt=0, description="an endpoint that fails so long is disabled")

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
        default=1, gt=0, description="how often a worker looks for documents without doorbell"
    )
    batch_seconds: float = Field(
        default=0.5, gt=0, description="how old request_counts and result files may be"
    )
    summary_seconds: float = Field(
        default=0.5, gt=0, description="how soon summaries whose documents are ready are planned"
    )
    lease_seconds: float = Field(
        default=30, ge=3, description="a lost worker's prompts, summaries and batches are free after it"
    )


class Settings(BaseSettings):
    """All groups; a misspelt LONGBATCH_ variable is refused."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_nested_delimiter="__", frozen=True, extra="forbid"
    )

    database: DatabaseSettings
    broker: BrokerSettings
    triton: TritonSettings = TritonSettings()
    engine: EngineSettings = EngineSettings()
    tokenizer: TokenizerSettings = TokenizerSettings()
    api: ApiSettings = ApiSettings()
    jobs: JobSettings = JobSettings()
    files: FileSettings = FileSettings()
    batches: BatchSettings = BatchSettings()
    documents: DocumentSettings = DocumentSettings()
    limits: LimitSettings = LimitSettings()
    webhooks: WebhookSettings = WebhookSettings()
    maintenance: MaintenanceSettings = MaintenanceSettings()


class EngineSide(BaseSettings):
    """The groups that say which engine is fed, without those of any other server."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_nested_delimiter="__", frozen=True, extra="ignore"
    )

    triton: TritonSettings = TritonSettings()
    engine: EngineSettings = EngineSettings()
    tokenizer: TokenizerSettings = TokenizerSettings()


class _DatabaseOnly(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_nested_delimiter="__", frozen=True, extra="ignore"
    )

    database: DatabaseSettings


def load() -> Settings:
    """The settings of this process's environment.

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
    """The database group alone, for migrations, which need no broker.

    Raises:
        ValueError: LONGBATCH_DATABASE__URL is missing or another value of the group is wrong.
    """
    return _DatabaseOnly().database
