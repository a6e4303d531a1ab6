"""What a response's job generated, as items: thinking, messages and calls of functions, in their order."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from jobs.answers.log_probs import LogProbs
from jobs.database.base import JsonObject
from jobs.live_output import OutputPiece
from jobs.prompts.tools.calls import call_id
from jobs.prompts.tools.frames import CallPart, FrameReader, TextPart


@dataclass(frozen=True, slots=True)
class ReasoningPart:
    """A stretch of thinking."""

    text: str


Part = ReasoningPart | TextPart | CallPart


@dataclass(frozen=True, slots=True)
class OutputItem:
    """An item of an output.

    Attributes:
        response_id: of the response that it belongs to.
        kind: reasoning, message or function_call.
        number: of items of its kind before it.
        text: what it says: a call's arguments.
        name: of the function that it calls; empty: it is no call.
        is_whole: nothing of it is missing.
        log_probs: of a message's tokens, as OpenAI writes them; empty: they were not asked for.
    """

    response_id: UUID
    kind: str
    number: int
    text: str = ""
    name: str = ""
    is_whole: bool = True
    log_probs: tuple[JsonObject, ...] = ()

    @property
    def id(self) -> str:
        """Name it: the response's digits, and its number unless it is the first of its kind."""
        suffix = f"n{self.number}" if self.number else ""
        return f"{_PREFIXES[self.kind]}_{self.response_id.hex}{suffix}"

    @property
    def part(self) -> JsonObject:
        """Its only part of content, with all of its text."""
        if self.kind == REASONING:
            return {"type": "reasoning_text", "text": self.text}
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": list(self.log_probs)}

    def as_object(self) -> JsonObject:
        """Return it as callers see it."""
        head: JsonObject = {
            "id": self.id,
            "type": self.kind,
            "status": "completed" if self.is_whole else "incomplete",
        }
        match self.kind:
            case "reasoning":
                return head | {"summary": [], "content": [self.part], "encrypted_content": None}
            case "message":
                return head | {"role": "assistant", "content": [self.part]}
            case _:
                called = call_id(self.response_id, self.number)
                return head | {"call_id": called, "name": self.name, "arguments": self.text}

    def begun(self) -> JsonObject:
        """Return it as it is when nothing of it is there yet."""
        empty: JsonObject = {"arguments": ""} if self.kind == CALL else {"content": []}
        return self.as_object() | {"status": "in_progress"} | empty


REASONING: Final = "reasoning"
MESSAGE: Final = "message"
CALL: Final = "function_call"
_PREFIXES: Final = {REASONING: "rs", MESSAGE: "msg", CALL: "fc"}


class OutputReader:
    """Splits an output into parts, whatever pieces it comes in."""

    def __init__(self) -> None:
        self._frames = FrameReader()

    def read(self, new: OutputPiece) -> Iterator[Part]:
        """Yield the parts of new output."""
        if new.reasoning:
            yield ReasoningPart(new.reasoning)
        yield from self._frames.push(new.text)


class ItemWriter:
    """Puts the parts of one output into items.

    Attributes:
        open: the item that grows, without its text; None: the next part begins one.
    """

    def __init__(self, response_id: UUID) -> None:
        self.open: OutputItem | None = None
        self._response_id = response_id
        self._numbers = dict.fromkeys(_PREFIXES, 0)
        self._text: list[str] = []
        self._num_chars = 0
        self._log_probs: list[JsonObject] = []

    def fits(self, part: Part) -> bool:
        """Return True if the part goes on with the item that grows."""
        is_new_call = isinstance(part, CallPart) and part.name is not None
        return self.open is not None and self.open.kind == kind_of(part) and not is_new_call

    def begin(self, kind: str, name: str = "") -> OutputItem:
        """Begin an item; the one before it must be closed."""
        self.open = OutputItem(self._response_id, kind, self._numbers[kind], name=name)
        self._numbers[kind] += 1
        self._text, self._num_chars, self._log_probs = [], 0, []
        return self.open

    def grow(self, text: str) -> int:
        """Add to the item that grows; return the number of characters that it had."""
        before = self._num_chars
        self._text.append(text)
        self._num_chars += len(text)
        return before

    def score(self, log_probs: Sequence[JsonObject]) -> None:
        """Add log probabilities to the item that grows."""
        self._log_probs += log_probs

    def close(self, *, is_whole: bool) -> OutputItem | None:
        """Close the item that grows, if there is one, and return it."""
        closed, self.open = self.open, None
        if closed is None:
            return None
        text, scores = "".join(self._text), tuple(self._log_probs)
        return replace(closed, text=text, is_whole=is_whole, log_probs=scores)

    @property
    def needs_message(self) -> bool:
        """True if the output would be no answer: no message, and no call."""
        return not (self._numbers[MESSAGE] or self._numbers[CALL])


def kind_of(part: Part) -> str:
    """Name the kind of item that the part belongs to."""
    match part:
        case ReasoningPart():
            return REASONING
        case CallPart():
            return CALL
        case TextPart():
            return MESSAGE


def text_of(part: Part) -> str:
    """Return what the part adds to its item."""
    return part.arguments if isinstance(part, CallPart) else part.text


def scores_of(log_probs: LogProbs | None) -> Sequence[JsonObject]:
    """Write log probabilities as OpenAI does."""
    found: list[JsonObject] = [] if log_probs is None else log_probs.for_chat()["content"]
    return found


def items_of(response_id: UUID, piece: OutputPiece, *, is_whole: bool, is_answer: bool) -> list[OutputItem]:
    """Return the items of a whole output; log probabilities go with its first message.

    Args:
        response_id: of the response.
        piece: all that was generated.
        is_whole: nothing of it is missing.
        is_answer: it ended by itself or by its limit, so there is a message even if it says nothing.
    """
    writer = ItemWriter(response_id)
    found: list[OutputItem | None] = []
    for part in OutputReader().read(piece):
        if not writer.fits(part):
            found.append(writer.close(is_whole=True))
            writer.begin(kind_of(part), part.name or "" if isinstance(part, CallPart) else "")
        writer.grow(text_of(part))
    if is_answer and writer.needs_message:
        found.append(writer.close(is_whole=True))
        writer.begin(MESSAGE)
    found.append(writer.close(is_whole=is_whole))
    items = [item for item in found if item is not None]
    message = next((place for place, item in enumerate(items) if item.kind == MESSAGE), None)
    if message is not None:
        items[message] = replace(items[message], log_probs=tuple(scores_of(piece.log_probs)))
    return items
