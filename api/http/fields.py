"""Types, limits and examples of the fields of requests and replies."""

from typing import Any, Final

from fastapi import Query
from pydantic import ConfigDict

Seconds = int

MIN_EXPIRY_SECONDS: Final = 3600
MAX_EXPIRY_SECONDS: Final = 2_592_000  # 30 days
_MAX_WAIT_SECONDS: Final = 60


def example(**fields: Any) -> ConfigDict:  # noqa: ANN401  # JSON
    """Return the configuration of a model whose documentation shows this example."""
    return ConfigDict(json_schema_extra={"examples": [fields]})


def wait_seconds(kind: str) -> Any:  # noqa: ANN401  # as FastAPI's own
    """Return the query parameter that waits for a thing of this kind to end."""
    description = f"Seconds to wait for the {kind} to end before responding."
    return Query(ge=0, le=_MAX_WAIT_SECONDS, allow_inf_nan=False, description=description)
