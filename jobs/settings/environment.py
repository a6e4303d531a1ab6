"""All groups together, read once from LONGBATCH_<GROUP>__<NAME> at each composition root."""

import os
from typing import Self

from pydantic import model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from jobs.settings.group import ENV_PREFIX
from jobs.settings.servers import (
    BrokerSettings,
    DatabaseSettings,
    EngineSettings,
    TokenizerSettings,
    TritonSettings,
)
from jobs.settings.service import ApiSettings, ConsoleSettings, LimitSettings, WebhookSettings
from jobs.settings.sign_in import OidcSettings
from jobs.settings.work import (
    BatchSettings,
    DocumentSettings,
    FileSettings,
    JobSettings,
    MaintenanceSettings,
    MetricsSettings,
    TraceSettings,
)

# Read outside this package: the cache of the default tokenizer, the server that the command line calls, and
# the release of an image.
OTHER_VARIABLES = frozenset(
    {"LONGBATCH_CACHE_DIR", "LONGBATCH_API_URL", "LONGBATCH_API_KEY", "LONGBATCH_VERSION"}
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


class ContentSide(_Groups):
    """The groups that say where callers' content is, and what seals it."""

    database: DatabaseSettings
    files: FileSettings = FileSettings()
    webhooks: WebhookSettings = WebhookSettings()

    @model_validator(mode="after")
    def _content_has_a_key(self) -> Self:
        _require_key(self.database, self.webhooks)
        return self


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
    oidc: OidcSettings = OidcSettings()
    jobs: JobSettings = JobSettings()
    files: FileSettings = FileSettings()
    batches: BatchSettings = BatchSettings()
    documents: DocumentSettings = DocumentSettings()
    limits: LimitSettings = LimitSettings()
    webhooks: WebhookSettings = WebhookSettings()
    maintenance: MaintenanceSettings = MaintenanceSettings()
    metrics: MetricsSettings = MetricsSettings()
    traces: TraceSettings = TraceSettings()

    @model_validator(mode="after")
    def _content_has_a_key(self) -> Self:
        _require_key(self.database, self.webhooks)
        return self


class EngineSide(_Groups):
    """The groups that describe the engine, without those of any other server."""

    triton: TritonSettings = TritonSettings()
    engine: EngineSettings = EngineSettings()
    tokenizer: TokenizerSettings = TokenizerSettings()


class _DatabaseOnly(_Groups):
    database: DatabaseSettings


def _require_key(database: DatabaseSettings, webhooks: WebhookSettings) -> None:
    if database.encrypt_content and webhooks.encryption_key is None:
        raise ValueError(
            "LONGBATCH_DATABASE__ENCRYPT_CONTENT needs a key: set LONGBATCH_WEBHOOKS__ENCRYPTION_KEY"
        )


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
