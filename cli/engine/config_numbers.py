"""Numbers of a model's config.json, which may say anything: not every class of transformers checks them."""

from collections.abc import Mapping
from typing import Any, Final

from cli.engine.errors import ProfileError

Config = dict[str, Any]

_MOST: Final = 10**9  # above every dimension of a model; products of a few stay finite


def number(config: Mapping[str, Any], name: str) -> int:
    """Read a dimension.

    Raises:
        ProfileError: it is missing, not a whole number, or not one that a model can have.
    """
    found = config.get(name)
    if not isinstance(found, int) or isinstance(found, bool):
        raise ProfileError(f"{name_of(config)}: config.json has no number {name}")
    if not 1 <= found <= _MOST:
        raise ProfileError(f"{name_of(config)}: {name} of config.json cannot be {found}")
    return found


def number_or(config: Mapping[str, Any], name: str, default: int) -> int:
    """Read a dimension that models may leave out: `default` where it is missing, null or 0."""
    return number(config, name) if config.get(name) else default


def name_of(config: Mapping[str, Any]) -> str:
    """Name the model's type, for messages."""
    return f"model_type {config.get('model_type', 'unknown')}"
