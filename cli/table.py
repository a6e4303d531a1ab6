"""The server's commands by name, each with the module that registers it."""

from collections.abc import Mapping
from typing import Final

_NAMES: Final = (
    "demo",
    "up",
    "service",
    "migrate",
    "doctor",
    "tenants",
    "keys",
    "sessions",
    "content",
    "engine",
    "adapters",
    "bench",
)
COMMANDS: Final[Mapping[str, str]] = {name: f"cli.commands.{name}" for name in _NAMES}
