"""The items of a response's input: as callers send them, as messages of a chat, and as they are listed."""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal
from uuid import UUID

from pydantic import Discriminator, Field, Tag

from jobs.database.base import JsonObject
from jobs.errors import InvalidRequestError
from jobs.prompts.tools.definitions import FunctionName
from jobs.validation import Closed, NonEmpty, Text

# What pydantic puts into the location of an error for the branches of the unions below.
BRANCHES: Final = frozenset(
    {
        *("[text]", "[items]", "[parts]", "[key]"),
        *("[message]", "[reasoning]", "[function_call]", "[function_call_output]"),
    }
)
MAX_ITEMS: Final = 4096  # as messages of a chat
_KINDS: Final = frozenset({"message", "reasoning", "function_call", "function_call_output"})

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class InputPart(Closed):
    """A part of a message's content."""

    type: Literal["input_text", "output_text"]
    text: Text
    annotations: list[Any] | None = Field(None, description="As an earlier response had them; not used.")
    logprobs: list[Any] | None = Field(None, description="As an earlier response had them; not used.")


def _content_kind(value: object) -> str | None:
    if isinstance(value, str):
        return "[text]"
    return "[parts]" if isinstance(value, list) else None


MessageContent = Annotated[
    Annotated[Text, Tag("[text]")] | Annotated[list[InputPart], Tag("[parts]")],
    Discriminator(
        _content_kind,
        custom_error_type="content",
        custom_error_message="must be a text or a list of parts",
    ),
]


CallId = Annotated[NonEmpty, Field(max_length=256)]


def texts_of(content: str | list[InputPart]) -> list[str]:
    """Return the texts of a content, in order."""
    return [content] if isinstance(content, str) else [part.text for part in content]


class MessageItem(Closed):
    """One turn of a conversation."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: MessageContent
    id: Text | None = Field(None, description="As an earlier response had it; not used.")
    status: ItemStatus | None = None
    phase: Literal["commentary", "final_answer"] | None = None

    @property
    def parts(self) -> list[str]:
        """The texts of the content."""
        return texts_of(self.content)


class ReasoningItem(Closed):
    """What the model thought before an earlier answer; it does not see it again."""

    type: Literal["reasoning"]
    id: Text | None = None
    summary: list[Any] | None = None
    content: list[Any] | None = None
    encrypted_content: Text | None = None
    status: ItemStatus | None = None


class FunctionCallItem(Closed):
    """A call that an earlier answer made."""

    type: Literal["function_call"]
    call_id: CallId
    name: FunctionName
    arguments: Text = Field(description="JSON, as it was returned.")
    id: Text | None = Field(None, description="As an earlier response had it; not used.")
    status: ItemStatus | None = None


class FunctionOutputItem(Closed):
    """The result of a call."""

    type: Literal["function_call_output"]
    call_id: CallId
    output: MessageContent
    id: Text | None = None
    status: ItemStatus | None = None


InputItem = MessageItem | ReasoningItem | FunctionCallItem | FunctionOutputItem


def _item_kind(value: object) -> str | None:
    kind = value.get("type", "message") if isinstance(value, dict) else getattr(value, "type", None)
    return f"[{kind}]" if isinstance(kind, str) and kind in _KINDS else None


ResponseItem = Annotated[
    Annotated[MessageItem, Tag("[message]")]
    | Annotated[ReasoningItem, Tag("[reasoning]")]
    | Annotated[FunctionCallItem, Tag("[function_call]")]
    | Annotated[FunctionOutputItem, Tag("[function_call_output]")],
    Discriminator(
        _item_kind,
        custom_error_type="item",
        custom_error_message="type must be message, reasoning, function_call or function_call_output",
    ),
]


def _input_kind(value: object) -> str | None:
    if isinstance(value, str):
        return "[text]"
    return "[items]" if isinstance(value, list) else None


ResponseInput = Annotated[
    Annotated[NonEmpty, Tag("[text]")]
    | Annotated[list[ResponseItem], Field(min_length=1, max_length=MAX_ITEMS), Tag("[items]")],
    Discriminator(
        _input_kind, custom_error_type="input", custom_error_message="must be a text or a list of items"
    ),
]
Items = Sequence[InputItem]


def items_of(given: str | Items) -> Items:
    """Return the items of an input, a text as the message of a user."""
    return [MessageItem(role="user", content=given)] if isinstance(given, str) else given


def chat_messages(items: Items, instructions: str | None) -> list[JsonObject]:
    """Write a conversation of instructions and items as messages of a chat.

    An answer's text and the calls that follow it are one message.

    Raises:
        InvalidRequestError: an item is the result of a call that no item before it made.
    """
    found: list[JsonObject] = []
    calls: list[JsonObject] | None = None  # of the last message, if that is an answer
    made: set[str] = set()
    if instructions is not None:
        found.append({"role": "system", "content": instructions})
    for place, item in enumerate(items):
        match item:
            case FunctionCallItem():
                if calls is None:
                    calls = []
                    found.append({"role": "assistant", "content": None, "tool_calls": calls})
                function = {"name": item.name, "arguments": item.arguments}
                calls.append({"id": item.call_id, "type": "function", "function": function})
                made.add(item.call_id)
            case FunctionOutputItem():
                _check_made(item, made, place)
                output = "".join(texts_of(item.output))
                found.append({"role": "tool", "tool_call_id": item.call_id, "content": output})
                calls = None
            case MessageItem(role="assistant"):
                calls = []
                found.append({"role": "assistant", "content": "".join(item.parts), "tool_calls": calls})
            case MessageItem():
                found.append({"role": item.role, "content": "".join(item.parts)})
                calls = None
    return [_without_empty_calls(each) for each in found]


def _check_made(item: FunctionOutputItem, made: set[str], place: int) -> None:
    if item.call_id not in made:
        param = f"input.{place}.call_id"
        raise InvalidRequestError(f"{param}: no item before it made this call.", param=param)


def _without_empty_calls(message: JsonObject) -> JsonObject:
    return message if message.get("tool_calls") else {k: v for k, v in message.items() if k != "tool_calls"}


def stored_item(item: InputItem) -> JsonObject:
    """Write an item as it is kept and listed, except its id."""
    match item:
        case ReasoningItem():
            return {"type": "reasoning", "summary": item.summary or [], "content": item.content or []}
        case FunctionCallItem():
            call = {"call_id": item.call_id, "name": item.name, "arguments": item.arguments}
            return {"type": "function_call", "status": "completed", **call}
        case FunctionOutputItem():
            output: object = item.output
            if not isinstance(output, str):
                output = [{"type": "input_text", "text": text} for text in texts_of(item.output)]
            result = {"call_id": item.call_id, "output": output}
            return {"type": "function_call_output", "status": "completed", **result}
        case MessageItem(role="assistant"):
            content = [{"type": "output_text", "text": text, "annotations": []} for text in item.parts]
        case MessageItem():
            content = [{"type": "input_text", "text": text} for text in item.parts]
    return {"type": "message", "role": item.role, "status": "completed", "content": content}


def listed_items(response_id: UUID, stored: Sequence[JsonObject]) -> list[JsonObject]:
    """Return kept items in their order, each with its id."""
    return [
        {"id": f"{_PREFIXES[str(item['type'])]}_{response_id.hex}in{place}", **item}
        for place, item in enumerate(stored)
    ]


_PREFIXES: Final = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
}
