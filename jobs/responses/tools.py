"""The functions that a response may call, as its callers define and choose them, and as a chat does."""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import Discriminator, Field, Tag

from jobs.database.base import JsonObject
from jobs.prompts.tools.definitions import FunctionName
from jobs.validation import Closed, Text

# What pydantic puts into the location of an error for the branches of a choice.
TOOL_BRANCHES: Final = frozenset({"[mode]", "[named]"})


class ResponseTool(Closed):
    """A function that the model may call."""

    type: Literal["function"]
    name: FunctionName
    description: Text | None = None
    parameters: dict[str, Any] | None = Field(None, description="A JSON Schema; null: it takes none.")
    strict: bool | None = Field(None, description="Refuse arguments that the schema does not allow.")

    def shown(self) -> JsonObject:
        """Return it as a response repeats it."""
        return self.model_dump() | {"strict": self.strict is True}


class NamedResponseTool(Closed):
    """The one function that must be called."""

    type: Literal["function"]
    name: FunctionName


def _choice_kind(value: object) -> str:
    return "[named]" if isinstance(value, dict | NamedResponseTool) else "[mode]"


ResponseToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("[mode]")]
    | Annotated[NamedResponseTool, Tag("[named]")],
    Discriminator(_choice_kind),
]
_Choice = Literal["none", "auto", "required"] | NamedResponseTool


def chat_tools(
    tools: Sequence[ResponseTool] | None, choice: _Choice | None, *, is_parallel: bool | None
) -> JsonObject:
    """Write these fields as a request for a chat completion has them."""
    found: JsonObject = {}
    if tools:
        found["tools"] = [_chat_tool(tool) for tool in tools]
    if isinstance(choice, NamedResponseTool):
        found["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
    elif choice is not None:
        found["tool_choice"] = choice
    if is_parallel is not None:
        found["parallel_tool_calls"] = is_parallel
    return found


def _chat_tool(tool: ResponseTool) -> JsonObject:
    function = tool.model_dump(exclude={"type"}, exclude_none=True)
    return {"type": "function", "function": function}


def shown_choice(choice: _Choice | None) -> JsonObject | str:
    """Return the choice as a response repeats it."""
    return choice.model_dump() if isinstance(choice, NamedResponseTool) else choice or "auto"
