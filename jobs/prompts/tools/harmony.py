"""The parts of an answer in channels, as gpt-oss writes it: thinking, calls and text."""

import re
from collections.abc import Collection
from enum import Enum, auto
from typing import Final

from jobs.live_output import OutputPiece
from jobs.prompts.tools import frames
from jobs.prompts.tools.call_object import escaped

_MESSAGE: Final = "<|message|>"
_ENDS: Final = ("<|end|>", "<|start|>", "<|call|>", "<|return|>")
_HEADERS: Final = ("<|channel|>", "<|start|>", "<|message|>", " to=", "to=")
_CHANNEL: Final = re.compile(r"<\|channel\|>\s*([a-z]+)")
_RECIPIENT: Final = re.compile(r"to=functions\.([a-zA-Z0-9_-]{1,64})(?![a-zA-Z0-9_.-])")
_MAX_HEADER: Final = 512  # characters; a longer one is text


class _Body(Enum):
    HEADER = auto()
    THINKING = auto()
    TEXT = auto()
    CALL = auto()
    DROPPED = auto()  # thinking after text, which no part of an answer has a place for


class HarmonySplitter:
    """A filter that splits an answer in channels. Not thread-safe.

    The visible text that it returns has calls in frames. What it returns in all depends on the whole text
    alone: text is held back only while it can still become a tag.

    Attributes:
        has_begun: the answer has thought, or certainly thinks.
        has_ended: some text was thinking, and all further one is visible.
        is_single: the answer ends after its first call.
        is_over: it has ended there.
    """

    def __init__(self, names: Collection[str], *, is_single: bool = False) -> None:
        """Args: names: of the functions that may be called; is_single: once, after which all is dropped."""
        self.has_begun = False
        self.has_ended = False
        self.is_over = False
        self._names = names
        self.is_single = is_single
        self._body = _Body.HEADER
        self._header = ""
        self._held = ""
        self._is_first = True
        self._has_thought = False
        self._has_text = False
        self._num_calls = 0
        self._thoughts: list[str] = []
        self._visible: list[str] = []

    @property
    def is_visible(self) -> bool:
        """True once all further text is visible."""
        return self.has_ended or self._body in (_Body.TEXT, _Body.CALL)

    @property
    def num_held(self) -> int:
        """Characters that are held back."""
        return len(self._header) + len(self._held)

    def push(self, text: str) -> OutputPiece:
        """Return the thinking and the visible text that are now certain."""
        for char in text:
            if self.is_over:
                break
            if self._body is _Body.HEADER:
                self._in_header(char)
            else:
                self._in_body(char)
        return self._take()

    def flush(self) -> OutputPiece:
        """Return what was held back, since nothing more comes. A header without a message is none."""
        if self._body is not _Body.HEADER:
            self._write(self._held)
        elif not self._is_under_way and not self._header.lstrip().startswith("<|"):
            self._begin(_Body.TEXT)
            self._write(self._header)
        self._held = self._header = ""
        return self._take()

    def _take(self) -> OutputPiece:
        piece = OutputPiece("".join(self._thoughts), "".join(self._visible))
        self._thoughts, self._visible = [], []
        return piece

    def _in_header(self, char: str) -> None:
        self._header += char
        if self._header.endswith(_MESSAGE):
            header, self._header = self._header, ""
            self._open(header)
        elif not self._may_be_header() or len(self._header) > _MAX_HEADER:
            text, self._header = self._header, ""
            self._begin(_Body.TEXT)
            for each in text:
                self._in_body(each)

    @property
    def _is_under_way(self) -> bool:
        return bool(self._num_calls) or self._has_text or self.has_begun

    def _may_be_header(self) -> bool:
        """Return True unless the text in the place of a header is none: an answer without channels."""
        if self._is_under_way:
            return True  # only the beginning of an answer may lack one
        head = self._header
        return any(head.startswith(each) or each.startswith(head) for each in _HEADERS)

    def _open(self, header: str) -> None:
        channel, recipient = _CHANNEL.search(header), _RECIPIENT.search(header)
        if recipient is not None and recipient[1] in self._names:
            self._num_calls += 1
            self._begin(_Body.CALL)
            self._visible.append(f"{frames.CALL}{recipient[1]}{frames.ARGUMENTS}")
        elif channel is not None and channel[1] == "analysis":
            self._begin(_Body.DROPPED if self.has_ended or self._has_text else _Body.THINKING)
        else:
            self._begin(_Body.TEXT)

    def _begin(self, body: _Body) -> None:
        self._body = body
        self._held = ""
        self._is_first = True
        if body is _Body.THINKING:
            self.has_begun = True
        elif body is not _Body.DROPPED and self.has_begun:
            self.has_ended = True

    def _in_body(self, char: str) -> None:
        self._held += char
        if self._held in _ENDS:
            self._held = ""
            self.is_over = self.is_single and self._body is _Body.CALL
            self._body = _Body.HEADER
            return
        while self._held and not any(each.startswith(self._held) for each in _ENDS):
            self._write(self._held[0])
            self._held = self._held[1:]

    def _write(self, text: str) -> None:
        if not text:
            return
        match self._body:
            case _Body.THINKING:
                # Several messages of thinking are paragraphs.
                between = "\n\n" if self._is_first and self._has_thought else ""
                self._has_thought = True
                self._thoughts.append(between + frames.unmarked(text))
            case _Body.CALL:
                self._visible += [escaped(each) if each in frames.MARKS else each for each in text]
            case _Body.TEXT:
                self._write_text(text)
        self._is_first = False

    def _write_text(self, text: str) -> None:
        if self._is_first and self._num_calls:
            self._visible.append(frames.TEXT)
        if self._is_first and self._has_text:
            self._visible.append("\n\n")
        self._has_text = True
        self._visible.append(frames.unmarked(text))
