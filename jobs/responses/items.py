"""The items of a response's input: as callers send them, as messages of a chat, and as they are listed."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final, Literal
from uuid import UUID

from pydantic import Discriminator, Field, Tag

from jobs.database.base import JsonObject
from jobs.validation import Closed, NonEmpty, Text

# What pydantic puts into the location of an error for the branches of the unions below.
BRANCHES: Final = frozenset({"[text]", "[items]", "[parts]", "[message]", "[reasoning]", "[key]"})
MAX_ITEMS: Final = 4096  # as messages of a chat
_KINDS: Final = frozenset({"message", "reasoning"})

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
        return [self.content] if isinstance(self.content, str) else [part.text for part in self.content]


class ReasoningItem(Closed):
    """What the model thought before an earlier answer; it does not see it again."""

    type: Literal["reasoning"]
    id: Text | None = None
    summary: list[Any] | None = None
    content: list[Any] | None = None
    encrypted_content: Text | None = None
    status: ItemStatus | None = None


def _item_kind(value: object) -> str | None:
    kind = value.get("type", "message") if isinstance(value, dict) else getattr(value, "type", None)
    return f"[{kind}]" if isinstance(kind, str) and kind in _KINDS else None


ResponseItem = Annotated[
    Annotated[MessageItem, Tag("[message]")] | Annotated[ReasoningItem, Tag("[reasoning]")],
    Discriminator(
        _item_kind,
        custom_error_type="item",
        custom_error_message="type must be message or reasoning",
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
Items = Sequence[MessageItem | ReasoningItem]


def items_of(given: str | Items) -> Items:
    """Return the items of an input, a text as the message of a user."""
    return [MessageItem(role="user", content=given)] if isinstance(given, str) else given


def chat_messages(items: Items, instructions: str | None) -> Iterator[JsonObject]:
    """Write a conversation of instructions and items as messages of a chat."""
    if instructions is not None:
        yield {"role": "system", "content": instructions}
    for item in items:
        if isinstance(item, MessageItem):
            yield {"role": item.role, "content": "".join(item.parts)}


def stored_item(item: MessageItem | ReasoningItem) -> JsonObject:
    """Write an item as it is kept and listed, except its id."""
    if isinstance(item, ReasoningItem):
        return {"type": "reasoning", "summary": item.summary or [], "content": item.content or []}
    kind = "output_text" if item.role == "assistant" else "input_text"
    content: list[JsonObject] = [{"type": kind, "text": text} for text in item.parts]
    if item.role == "assistant":
        content = [{**part, "annotations": []} for part in content]
    return {"type": "message", "role": item.role, "status": "completed", "content": content}


def listed_items(response_id: UUID, stored: Sequence[JsonObject]) -> list[JsonObject]:
    """Return kept items in their order, each with its id."""
    prefixes = {"message": "msg", "reasoning": "rs"}
    return [
        {"id": f"{prefixes[str(item['type'])]}_{response_id.hex}in{place}", **item}
        for place, item in enumerate(stored)
    ]
