"""What every client is asked, and where the stack is that it asks."""

import os
from collections.abc import Callable, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

URL = os.environ["LONGBATCH_URL"]
KEY = os.environ["LONGBATCH_API_KEY"]
MODEL = os.environ["LONGBATCH_MODEL"]

# Answers of the model are short where they are right; a cut one would be none.
MAX_TOKENS = 160
CAPITAL = "Name the capital of France."
DESCRIBE = "Describe the city of Oslo, the capital of Norway."
WEATHER = "What is the weather in Oslo?"
SUNNY = "sunny, 21 degrees"

Calls = Mapping[str, Callable[[], Any]]


class City(BaseModel):
    """A city."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=20)
    size: Literal["small", "large"]
    founded: int = Field(ge=0, le=2000)


WEATHER_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER_FUNCTION: dict[str, Any] = {
    "name": "weather",
    "description": "Tell the weather in a city.",
    "parameters": WEATHER_PARAMETERS,
}
WEATHER_TOOL: dict[str, Any] = {"type": "function", "function": WEATHER_FUNCTION}


def called(name: str, arguments: object) -> dict[str, object]:
    """One call of a tool, as the test reads it."""
    return {"name": name, "arguments": arguments}
