"""The turns of a conversation as requests write them, calls and their results among them."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Protocol

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from jobs.errors import InvalidRequestError, MissingFieldError
from jobs.prompts.messages import Message
from jobs.prompts.tools.calls import ToolCall
from jobs.prompts.tools.definitions import MAX_TOOLS, CallInput
from jobs.validation import Closed, NonEmpty, Text

# What pydantic puts into the location of a turn, besides field names.
TURN_BRANCHES = frozenset({"[assistant]", "[tool]", "[plain]"})


def joined_content(value: object) -> object:
    """Join the text parts of a content, in order."""
    if not isinstance(value, list):
        return value
    texts: list[str] = []
    for part in value:
        match part:
            case {"type": "text", "text": str(text), **rest} if not rest:
                texts.append(text)
            case _:
                raise PydanticCustomError("content_part", "only parts of type text are supported.")
    return "".join(texts)


Content = Annotated[Text, BeforeValidator(joined_content)]


class AssistantTurn(Closed):
    """An earlier answer: its text, the calls that it made, or both."""

    role: Literal["assistant"]
    content: Annotated[Text | None, BeforeValidator(joined_content)] = Field(
        None, description="May be null if the answer made calls."
    )
    tool_calls: list[CallInput] | None = Field(None, max_length=MAX_TOOLS)
    reasoning_content: Text | None = Field(
        None,
        description="What an earlier answer thought, as it was returned; the model does not see it again.",
    )
    refusal: None = None
    annotations: list[None] | None = Field(None, max_length=0)
    audio: None = None
    parsed: Any = Field(None, description="What OpenAI's clients add; has no effect.")
    function_call: None = None
    provider_specific_fields: dict[str, Any] | None = Field(
        None, description="Has no effect: LiteLLM's notes, which come back with an answer that it returned."
    )


class ToolTurn(Closed):
    """The result of a call."""

    role: Literal["tool"]
    content: Content
    tool_call_id: Annotated[NonEmpty, Field(max_length=256)]
    name: Text | None = Field(None, description="Has no effect: the call names its function.")


def turn_kind(value: object) -> str:
    """Name the branch that a turn belongs to, by its role."""
    role = value.get("role") if isinstance(value, dict) else getattr(value, "role", None)
    return f"[{role}]" if role in ("assistant", "tool") else "[plain]"


class _Plain(Protocol):
    @property
    def role(self) -> Literal["system", "user"]: ...

    @property
    def content(self) -> str: ...


def messages_of(turns: Sequence[AssistantTurn | ToolTurn | _Plain], *, param: str) -> list[Message]:
    """Return the turns as messages.

    Args:
        turns: of the request.
        param: the field that holds them.

    Raises:
        InvalidRequestError: a turn says nothing, or holds a result of a call that no turn before it made.
    """
    made: dict[str, str] = {}
    found: list[Message] = []
    for index, turn in enumerate(turns):
        place = f"{param}.{index}"
        match turn:
            case AssistantTurn(content=content, tool_calls=calls):
                if content is None and not calls:
                    raise MissingFieldError(
                        f"The field '{place}.content' is required.", param=f"{place}.content"
                    )
                asked = tuple(
                    ToolCall(each.id, each.function.name, each.function.arguments) for each in calls or ()
                )
                made |= {each.id: each.name for each in asked}
                found.append(Message("assistant", content or "", calls=asked))
            case ToolTurn(tool_call_id=call_id):
                if call_id not in made:
                    message = f"{place}.tool_call_id: no turn before it made this call."
                    raise InvalidRequestError(message, param=f"{place}.tool_call_id")
                found.append(Message("tool", turn.content, call_id=call_id, name=made[call_id]))
            case _:
                found.append(Message(turn.role, turn.content))
    return found
