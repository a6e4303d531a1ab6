"""Settings of what callers see: the HTTP service, the console, limits, webhooks."""

from datetime import timedelta
from pathlib import Path
from typing import Final, Self

from pydantic import Field, SecretStr, model_validator

from jobs.settings.group import Group

_MAX_PORT: Final = 65_535


class ApiSettings(Group):
    """The HTTP service."""

    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    tls_certificate: Path | None = Field(
        default=None,
        description="PEM file of the service's certificate and of those that lead to its authority; read when"
        " the service starts. None: plain HTTP",
    )
    tls_key: Path | None = Field(default=None, description="PEM file of the certificate's key, unencrypted")
    key_cache_seconds: float = Field(
        default=5, ge=0, le=60, description="how long a revoked key may still work"
    )
    engine_cache_seconds: float = Field(
        default=5,
        ge=0,
        le=60,
        description="how long requests may be checked against what engines took before",
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
    min_body_rate: int = Field(
        default=512, ge=1, description="bytes per second of a body after body_idle_seconds; below it: 408"
    )
    read_idle_seconds: float = Field(
        default=60, gt=0, description="cut off a caller that reads nothing of its response for this long"
    )
    keep_alive_seconds: int = Field(
        default=75, ge=1, description="when idle connections close; keep it above a load balancer's limit"
    )
    max_connections: int = Field(
        default=10_000,
        ge=1,
        description="per process; its limit on open files also bounds it. At most half are one tenant's",
    )
    max_streams: int = Field(
        default=100, ge=1, description="open event streams of one tenant, per process; above it: 429"
    )
    recheck_seconds: float = Field(
        default=5, gt=0, description="how often to check the keys and sessions of open streams again"
    )

    @model_validator(mode="after")
    def _certificate_has_a_key(self) -> Self:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key must be set together.")
        return self


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


class LimitSettings(Group):
    """Default limits for tenants that have none of their own."""

    max_enqueued_tokens: int = Field(
        default=1_000_000_000, ge=0, description="prompt and max_tokens of all unfinished jobs together"
    )
    max_jobs: int = Field(default=500_000, ge=0, description="unfinished jobs")
    max_requests: int = Field(default=12_000, ge=1, description="per minute")
    max_stored_bytes: int = Field(
        default=0,
        ge=0,
        description="prompts, results, files, documents, questions and answers in the database; 0: no limit",
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
    proxy_url: str | None = Field(
        default=None,
        pattern=r"^http://(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}/?$",
        description="http://host:port of a proxy that all webhooks go through, by CONNECT. None: none; the"
        " environment's proxies are ignored",
    )
    proxy_credentials: SecretStr | None = Field(
        default=None, description="user:password that the proxy wants. None: none"
    )
    proxy_resolves: bool = Field(
        default=False,
        description="the proxy gets receivers' names, and must refuse private addresses itself; otherwise it"
        " gets the addresses that were checked here",
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

    @model_validator(mode="after")
    def _proxy_is_whole(self) -> Self:
        if self.proxy_url is None:
            if self.proxy_credentials is not None or self.proxy_resolves:
                raise ValueError("webhooks.proxy_credentials and proxy_resolves need webhooks.proxy_url")
        elif not 1 <= int(self.proxy_url.rstrip("/").rpartition(":")[2]) <= _MAX_PORT:
            raise ValueError(f"webhooks.proxy_url needs a port of 1 to {_MAX_PORT}")
        given = self.proxy_credentials.get_secret_value() if self.proxy_credentials else None
        if given is not None and not (":" in given and given.isprintable()):
            raise ValueError("webhooks.proxy_credentials must be user:password, without control characters")
        return self

    @property
    def max_per_server(self) -> int:
        """Exchanges at once with one server, over all destinations of a tenant there."""
        return self.server_concurrency or 2 * self.endpoint_concurrency
