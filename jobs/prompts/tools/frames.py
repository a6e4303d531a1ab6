"""An answer's calls within its text: one stream of characters, so that a reader can go on at any of them.

A call begins with a character that no text has, then its name, another one, and its arguments; a third one
ends the calls.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from jobs.database.base import JsonObject
from jobs.prompts.tools.calls import MadeCall, call_id

CALL: Final = "\x1e"
ARGUMENTS: Final = "\x1f"
TEXT: Final = "\x1d"
MARKS: Final = frozenset({CALL, ARGUMENTS, TEXT})
_MARKS: Final = re.compile("[\x1d\x1e\x1f]")


@dataclass(frozen=True, slots=True)
class TextPart:
    """A stretch of text."""

    text: str


@dataclass(frozen=True, slots=True)
class CallPart:
    """A stretch of a call.

    Attributes:
        index: of the call, from 0.
        name: of the function, where the call begins; None: it has begun.
        arguments: more of them; may be empty.
    """

    index: int
    name: str | None
    arguments: str = ""

    def framed(self) -> str:
        """Write it as a part of the stream."""
        begin = "" if self.name is None else f"{CALL}{self.name}{ARGUMENTS}"
        return begin + self.arguments


def call_piece(part: CallPart, job_id: UUID) -> JsonObject:
    """Write a stretch of a call as OpenAI's chunks have it: the first one has the names."""
    if part.name is None:
        return {"index": part.index, "function": {"arguments": part.arguments}}
    function: JsonObject = {"name": part.name, "arguments": part.arguments}
    return {"index": part.index, "id": call_id(job_id, part.index), "type": "function", "function": function}


class FrameReader:
    """A reader of such a stream, whatever pieces it comes in. Not thread-safe.

    Attributes:
        index: of the present or last call; -1: there is none.
        is_in_call: the next character belongs to that call.
    """

    def __init__(self, *, index: int = -1, is_in_call: bool = False) -> None:
        """Args: index, is_in_call: of a reader that goes on where another one stopped."""
        self.index = index
        self.is_in_call = is_in_call
        self._name: str | None = None

    def push(self, framed: str) -> list[TextPart | CallPart]:
        """Return what these characters hold."""
        parts: list[TextPart | CallPart] = []
        position = 0
        for match in _MARKS.finditer(framed):
            self._take(framed[position : match.start()], parts)
            self._mark(match[0], parts)
            position = match.end()
        self._take(framed[position:], parts)
        return parts

    def _take(self, piece: str, parts: list[TextPart | CallPart]) -> None:
        if self._name is not None:
            self._name += piece
        elif piece and self.is_in_call:
            parts.append(CallPart(self.index, None, piece))
        elif piece:
            parts.append(TextPart(piece))

    def _mark(self, mark: str, parts: list[TextPart | CallPart]) -> None:
        if mark == CALL:
            self.index += 1
            self.is_in_call, self._name = True, ""
        elif mark == ARGUMENTS:
            parts.append(CallPart(self.index, self._name or ""))
            self._name = None
        else:
            self.is_in_call = False


def unmarked(text: str) -> str:
    """Replace characters that would begin or end calls; no model writes them in earnest."""
    return _MARKS.sub("\ufffd", text)


def framed(text: str, calls: Sequence[MadeCall]) -> str:
    """Write an answer as one stream; the reverse of `unframed`."""
    pieces: list[str] = []
    position = 0
    for call in calls:
        if before := text[position : call.at]:
            pieces += [TEXT if position or pieces else "", before]
        pieces.append(f"{CALL}{call.name}{ARGUMENTS}{call.arguments}")
        position = call.at
    if after := text[position:]:
        pieces += [TEXT if calls else "", after]
    return "".join(pieces)


def unframed(stream: str) -> tuple[str, tuple[MadeCall, ...]]:
    """Return the text and the calls of a stream."""
    text = ""
    calls: list[MadeCall] = []
    for part in FrameReader().push(stream):
        match part:
            case TextPart():
                text += part.text
            case CallPart(name=str(name)):
                calls.append(MadeCall(len(text), name, ""))
            case CallPart():
                last = calls[-1]
                calls[-1] = MadeCall(last.at, last.name, last.arguments + part.arguments)
    return text, tuple(calls)
