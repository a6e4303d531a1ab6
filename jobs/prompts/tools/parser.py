"""The calls in an answer of JSON, between tags or bare, told apart from its text as it grows."""

from collections import deque
from enum import Enum, auto
from typing import Final

from jobs.prompts.tools import frames
from jobs.prompts.tools.call_object import CallObject, CallState
from jobs.prompts.tools.formats import ToolFormat
from jobs.prompts.tools.forms import CallForm

_SPACE: Final = " \t\r\n"
_TAGS: Final = {
    ToolFormat.LLAMA3: ("<|python_tag|>", ""),
    ToolFormat.HERMES: ("<tool_call>", "</tool_call>"),
    # Of a model in channels only what an engine guides comes here, which has no tags.
    ToolFormat.HARMONY: ("", ""),
}
# Models write between and after calls of JSON, and around JSON that they were asked for in words.
_BETWEEN: Final = frozenset(" \t\r\n,;]}`")
_FENCES: Final = ("```json\n", "```\n")
# An object that is no call by then is none: what is held back stays bounded.
_MAX_HELD: Final = 16_384


class _Place(Enum):
    START = auto()  # only white space so far, after which a bare object may be a call
    TEXT = auto()
    CALL = auto()
    AFTER = auto()  # only what may stand between calls


class CallParser:
    """A filter that turns the text of an answer into frames. Not thread-safe.

    What it returns in all depends on the whole text alone, however it is split. Text is held back only while
    it can still become a call. White space next to calls belongs to nothing; what looks like a call and is
    none stays text.

    Attributes:
        has_ended: the answer has its only call; the rest is dropped.
        is_single: it ends there.
    """

    def __init__(self, form: CallForm, markup: ToolFormat) -> None:
        """Args: form: what the answer may call; markup: how its model writes calls."""
        self.has_ended = False
        self.is_single = not form.is_parallel
        self._form = form
        self._begin, self._end = _TAGS[markup]
        self._is_bare = form.is_json or markup is ToolFormat.LLAMA3
        self._place = _Place.START if self._is_bare else _Place.TEXT
        self._call: CallObject | None = None
        self._opening = ""  # the tag of the present call; empty: it has none
        self._raw = ""  # of the present call, while it may be none
        self._held = ""  # a possible tag, in the text or after a call
        self._space = ""
        self._num_calls = 0
        self._has_text = False
        self._is_framed = False  # the last thing returned belongs to a call
        self._out: list[str] = []
        self._coming: deque[str] = deque()

    @property
    def num_held(self) -> int:
        """Characters that are held back."""
        is_open = self._call is not None and self._call.state is CallState.OPEN
        return len(self._space) + len(self._held) + (len(self._opening + self._raw) if is_open else 0)

    def push(self, text: str) -> str:
        """Return what is certain now, framed."""
        self._coming.extend(text)
        while self._coming and not self.has_ended:
            self._step(self._coming.popleft())
        return self._take()

    def flush(self) -> str:
        """Return what was held back, since nothing more comes."""
        while self._call is not None and self._call.state is CallState.OPEN:
            self._give_up()
            while self._coming:
                self._step(self._coming.popleft())
        held, self._held = self._held, ""
        if self._call is not None and self._call.state is CallState.BROKEN:
            for char in held:
                self._call.push_broken(char)
            self._emit(self._call.take())
        elif self._place in (_Place.TEXT, _Place.START):
            self._write(held)
            if not self._num_calls:
                self._out.append(self._space)
        return self._take()

    def _take(self) -> str:
        new, self._out = "".join(self._out), []
        return new

    def _step(self, char: str) -> None:
        match self._place:
            case _Place.CALL:
                self._in_call(char)
            case _Place.AFTER:
                self._after_call(char)
            case _Place.START:
                self._at_start(char)
            case _Place.TEXT:
                self._in_text(char)

    def _at_start(self, char: str) -> None:
        held = self._held + char
        if char == "{" and not self._held:
            self._open("", char)
        elif self._form.is_json and not self._held and char == "[":
            self._place = _Place.AFTER
            self._raw = char
        elif self._form.is_json and any(each.startswith(held.lower()) for each in _FENCES):
            self._held = "" if held.lower() in _FENCES else held
        elif not self._held and char in _SPACE:
            self._space += char
        else:
            self._held, self._place = "", _Place.TEXT
            self._coming.extendleft(reversed(held))

    def _in_text(self, char: str) -> None:
        self._held += char
        if self._begin and self._held == self._begin:
            self._held = ""
            self._open(self._begin, "")
            return
        while self._held and not (self._begin and self._begin.startswith(self._held)):
            self._write(self._held[0])
            self._held = self._held[1:]

    def _in_call(self, char: str) -> None:
        call = self._call
        if call is None:
            raise ValueError("there is a call")
        if call.state is CallState.BROKEN:
            self._in_broken(call, char)
            return
        self._raw += char
        is_part = call.push(char)
        if (new := call.take()) or call.state is CallState.BEGUN:
            self._emit(new)
        if call.state is CallState.REFUSED or (call.state is CallState.OPEN and len(self._raw) > _MAX_HELD):
            self._give_up()
        elif call.state is CallState.CLOSED:
            self._close()
        if not is_part:
            self._coming.appendleft(char)

    def _in_broken(self, call: CallObject, char: str) -> None:
        """Look for the tag that ends arguments which are not JSON."""
        self._held += char
        if self._end and self._held == self._end:
            self._held = ""
            self._close()
            return
        while self._held and not (self._end and self._end.startswith(self._held)):
            call.push_broken(self._held[0])
            self._held = self._held[1:]
        self._emit(call.take())

    def _after_call(self, char: str) -> None:
        held = self._held + char
        if self._opening and self._end.startswith(held):
            self._held = held
            if held == self._end:
                self._held, self._place = "", _Place.START if self._is_bare else _Place.TEXT
        elif not self._held and char in _BETWEEN:
            pass
        elif not self._held and char == "{" and not self._opening and self._is_bare:
            self._open("", char)
        else:
            self._held, self._place = "", _Place.TEXT
            self._coming.extendleft(reversed(held))

    def _open(self, opening: str, char: str) -> None:
        """Begin to read what may be a call."""
        needs_arguments = not opening or opening != "<tool_call>"
        self._call = CallObject(self._form.names, needs_arguments=needs_arguments)
        self._place, self._opening, self._raw = _Place.CALL, opening, ""
        if char:
            self._in_call(char)

    def _give_up(self) -> None:
        """Take what looked like a call for text; what follows its first character may hold one."""
        raw, self._raw = self._opening + self._raw, ""
        first = self._opening or raw[:1]
        self._call, self._place, self._opening = None, _Place.TEXT, ""
        self._write(first)
        self._coming.extendleft(reversed(raw[len(first) :]))

    def _close(self) -> None:
        self._num_calls += 1
        self._call, self._raw, self._held = None, "", ""
        self._place = _Place.AFTER
        self.has_ended = self.is_single

    def _emit(self, framed: str) -> None:
        """Return a piece of a call; white space before it belongs to nothing."""
        self._space = ""
        self._is_framed = True
        self._out.append(framed)

    def _write(self, text: str) -> None:
        """Return text, with white space only between what is not."""
        for char in text:
            if char in _SPACE:
                self._space += char
                continue
            space, self._space = self._space, ""
            if self._is_framed:
                self._out.append(frames.TEXT)
                self._is_framed, space = False, "\n" if self._has_text else ""
            self._has_text = True
            self._out.append(frames.unmarked(space + char))
