"""Types, limits and examples of the fields of requests and replies."""

from typing import Any, Final

from pydantic import ConfigDict

Seconds = int

MIN_EXPIRY_SECONDS: Final = 3600
MAX_EXPIRY_SECONDS: Final = 2_592_000  # 30 days


def example(**fields: Any) -> ConfigDict:  # noqa: ANN401  # JSON
    """Return the configuration of a model whose documentation shows this example."""
    return ConfigDict(json_schema_extra={"examples": [fields]})
