"""Where commands find their database and engine: in the environment, otherwise in the local stack."""

import os
from collections.abc import Mapping
from typing import Any

from pydantic import SecretStr

from cli.stack.options import ENGINE_URLS, default_directory
from cli.stack.private_files import kept_encryption_key
from jobs.errors import LongbatchError
from jobs.settings import (
    ENV_PREFIX,
    ContentSide,
    DatabaseSettings,
    EngineSettings,
    EngineSide,
    TokenizerSettings,
)
from longbatch.server import ready_stack


class NoDatabaseError(LongbatchError):
    """No database is configured: set LONGBATCH_DATABASE__URL, or start a local stack with `longbatch up`."""

    code = "no_database"


def find_database() -> DatabaseSettings:
    """Find the database in the environment, or that of the running local stack.

    Raises:
        NoDatabaseError: neither exists.
    """
    url = os.environ.get("LONGBATCH_DATABASE__URL") or ready_stack().get("database_url")
    if not url:
        raise NoDatabaseError
    return DatabaseSettings(url=SecretStr(url))


def find_content() -> ContentSide:
    """Find the stores of content and the keys that seal it, like `find_database`.

    Raises:
        NoDatabaseError: neither exists.
        ValueError: an environment variable has an invalid value.
    """
    given: dict[str, Any] = {"database": {"url": find_database().url.get_secret_value()}}
    if not os.environ.get("LONGBATCH_DATABASE__URL"):
        key = kept_encryption_key(default_directory(), os.environ)
        given["webhooks"] = {"encryption_key": key} if key else {}
    return ContentSide(**given)


def find_engine(url: str | None, *, metrics_url: str | None = None, model: str | None = None) -> EngineSide:
    """Build an engine's settings.

    The options come first, then the environment, then the running local stack.

    Raises:
        ValueError: an environment variable has an invalid value.
    """
    if url and "://" in url:
        return _engine_at(url, metrics_url=metrics_url, model=model)
    ready = {} if url or _is_configured() else ready_stack()
    if settings := ready.get("engine_settings"):
        return _engine_of_stack(settings, metrics_url=metrics_url or ready.get("triton_metrics"), model=model)
    given = {
        "url": url or ready.get("triton_grpc"),
        "metrics_url": metrics_url or ready.get("triton_metrics"),
        "model_name": model,
    }
    named: dict[str, str | None] = {name: value for name, value in given.items() if value}
    if url and not metrics_url:
        named["metrics_url"] = None  # another server's metrics would mislead
    side = EngineSide()
    return side.model_copy(update={"triton": side.triton.model_copy(update=named)})


def names_engine(url: str | None) -> bool:
    """Return True if an option, the environment or the running local stack names the engine."""
    return bool(url) or _is_configured() or bool(ready_stack())


def _is_configured() -> bool:
    return any(name in os.environ for name in ENGINE_URLS)


def _engine_at(url: str, *, metrics_url: str | None, model: str | None) -> EngineSide:
    """Build the settings of the engine at this URL, with what the environment says of its capacity."""
    side = EngineSide()
    named = side.engine.model_dump(exclude_unset=True) | {"url": url}
    if model:
        named["served_model"] = model
    # Another server's metrics would mislead.
    triton = {"metrics_url": metrics_url} | ({"model_name": model} if model else {})
    return side.model_copy(
        update={
            "triton": side.triton.model_copy(update=triton),
            "engine": type(side.engine).model_validate(named),
        }
    )


def _engine_of_stack(
    settings: Mapping[str, str], *, metrics_url: str | None, model: str | None
) -> EngineSide:
    """Build the settings of the local stack's engine from the variables of its worker."""
    side = EngineSide()
    groups: dict[str, dict[str, str]] = {"ENGINE": {}, "TOKENIZER": {}}
    for variable, value in settings.items():
        group, _, name = variable.removeprefix(ENV_PREFIX).partition("__")
        groups[group][name.lower()] = value
    given = side.engine.model_dump(exclude_unset=True)
    served = {"served_model": model} if model else {}
    of_triton = {"metrics_url": metrics_url} | ({"model_name": model} if model else {})
    return side.model_copy(
        update={
            "triton": side.triton.model_copy(update=of_triton),
            "engine": EngineSettings.model_validate(given | groups["ENGINE"] | served),
            "tokenizer": TokenizerSettings.model_validate(side.tokenizer.model_dump() | groups["TOKENIZER"]),
        }
    )
