"""The fields of a request that define functions and say which of them the answer may call."""

import json
from typing import Annotated, Any, Final, Literal

from pydantic import Discriminator, Field, Tag

from jobs.database.base import JsonObject
from jobs.errors import InvalidRequestError
from jobs.prompts import guides
from jobs.prompts.guides import Guide
from jobs.validation import Closed, NonEmpty, Text

MAX_TOOLS: Final = 128  # OpenAI's
# Of all definitions of a request. They are part of the prompt: 60,000 tokens and more.
MAX_TOOLS_BYTES: Final = 256 * 1024
_NO_PARAMETERS: Final[JsonObject] = {"type": "object", "properties": {}}

FunctionName = Annotated[str, Field(pattern="^[a-zA-Z0-9_-]{1,64}$")]


class FunctionDefinition(Closed):
    """A function that the model may call."""

    name: FunctionName
    description: Text | None = None
    parameters: dict[str, Any] | None = Field(None, description="A JSON Schema; null: it takes none.")
    strict: bool | None = Field(None, description="Refuse arguments that the schema does not allow.")

    @property
    def schema_of_arguments(self) -> JsonObject:
        """The JSON Schema of its arguments."""
        return _NO_PARAMETERS if self.parameters is None else self.parameters


class FunctionTool(Closed):
    """A tool; functions are the only kind."""

    type: Literal["function"]
    function: FunctionDefinition

    def shown(self) -> JsonObject:
        """Write it as chat templates expect it; `strict` is no matter of the model's."""
        function = self.function
        # Some templates insist on a description.
        about: JsonObject = {"name": function.name, "description": function.description or ""}
        return {"type": "function", "function": about | {"parameters": function.schema_of_arguments}}


class ChosenFunction(Closed):
    """The name of a function."""

    name: FunctionName


class NamedToolChoice(Closed):
    """The one function that must be called."""

    type: Literal["function"]
    function: ChosenFunction


def _choice_of(value: object) -> str:
    return "[named]" if isinstance(value, dict | NamedToolChoice) else "[mode]"


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("[mode]")]
    | Annotated[NamedToolChoice, Tag("[named]")],
    Discriminator(_choice_of),
]
# What pydantic puts into a location for a choice, besides field names.
CHOICE_BRANCHES: Final = frozenset({"[mode]", "[named]"})


class ToolFields(Closed):
    """The fields of requests whose answers may call functions."""

    tools: list[FunctionTool] | None = Field(
        None, max_length=MAX_TOOLS, description="Functions that the model may call."
    )
    tool_choice: ToolChoice | None = Field(
        None,
        description="Whether it may call (`auto`, the default), must (`required`, or one by name) or must not"
        " (`none`, which also leaves the functions out of the prompt).",
    )
    parallel_tool_calls: bool | None = Field(
        None, description="False: one call at most. Null: as many as the model makes."
    )

    @property
    def offered(self) -> list[FunctionTool]:
        """The functions that the model is told of."""
        return [] if self.tool_choice == "none" or not self.tools else self.tools

    def tool_schemas(self) -> list[tuple[str, Guide]]:
        """Return the schemas of all functions that were sent, with their parameters, for `guides.check`.

        Raises:
            InvalidRequestError: a definition or the choice is invalid, or all exceed a limit.
        """
        names: set[str] = set()
        found: list[tuple[str, Guide]] = []
        for index, tool in enumerate(self.tools or ()):
            param = f"tools.{index}.function"
            if tool.function.name in names:
                message = f"{param}.name: there are two functions of the name {tool.function.name!r}."
                raise InvalidRequestError(message, param=f"{param}.name")
            names.add(tool.function.name)
            found.append((f"{param}.parameters", _schema_guide(tool.function, f"{param}.parameters")))
        self._check_choice(names)
        # Of what was sent: functions that are not offered are checked, too.
        written = json.dumps([each.shown() for each in self.tools or ()], ensure_ascii=False)
        if len(written.encode(errors="surrogatepass")) > MAX_TOOLS_BYTES:
            raise InvalidRequestError(
                f"tools: must not exceed {MAX_TOOLS_BYTES} bytes in all.", param="tools"
            )
        return found

    def _check_choice(self, names: set[str]) -> None:
        match self.tool_choice:
            case NamedToolChoice(function=chosen) if chosen.name not in names:
                message = f"tool_choice: there is no function {chosen.name!r} among the tools."
                raise InvalidRequestError(message, param="tool_choice")
            case "required" if not names:
                message = "tool_choice: there are no tools of which one could be required."
                raise InvalidRequestError(message, param="tool_choice")


class CalledFunction(Closed):
    """The function of a call, and its arguments."""

    name: FunctionName
    arguments: Text = Field(description="JSON, as it was returned.")
    parsed_arguments: Any = Field(None, description="What OpenAI's clients add; has no effect.")


class CallInput(Closed):
    """A call that an earlier answer made."""

    id: Annotated[NonEmpty, Field(max_length=256)]
    type: Literal["function"] = "function"
    index: int | None = Field(None, description="As streams have it; has no effect.")
    function: CalledFunction
    provider_specific_fields: dict[str, Any] | None = Field(
        None, description="Has no effect: LiteLLM's notes, as in the turn around it."
    )


def _schema_guide(function: FunctionDefinition, param: str) -> Guide:
    schema = function.schema_of_arguments
    guide = guides.json_guide(schema, param=param)
    if schema.get("type", "object") != "object":
        raise InvalidRequestError(f"{param}: must be a schema of an object.", param=param)
    return guide
