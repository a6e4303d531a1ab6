"""The API's description of itself, and its committed file.

`make openapi` runs this file, which writes docs/openapi.json.
"""

import json
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from api.app import create_app
from jobs.settings import BrokerSettings, DatabaseSettings, Settings

ROOT = Path(__file__).resolve().parents[3]
FILE = ROOT / "docs" / "openapi.json"
# What callers were promised: the description without its words. A release replaces it.
PROMISED = ROOT / "tests" / "golden" / "openapi.json"
_WORDS = frozenset({"description", "summary", "title", "examples", "example", "tags"})


def described() -> dict[str, Any]:
    """The document as the API serves it."""
    settings = Settings(
        database=DatabaseSettings(url=SecretStr("postgresql://a@b/c")),
        broker=BrokerSettings(url=SecretStr("redis://a")),
    )
    found: dict[str, Any] = create_app(settings).openapi()
    return found


def as_text(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def without_words(value: Any, *, names: bool = False) -> Any:  # noqa: ANN401  # any JSON
    """What of a document a program relies on; `names`: its keys are names, not keywords."""
    if isinstance(value, dict):
        kept = {key: each for key, each in value.items() if names or key not in _WORDS or key == "info"}
        return {
            key: without_words(each, names=key in {"properties", "schemas", "paths"})
            for key, each in kept.items()
        }
    return [without_words(each) for each in value] if isinstance(value, list) else value


if __name__ == "__main__":
    FILE.write_text(as_text(described()), encoding="utf-8")
