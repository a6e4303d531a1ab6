"""A JSON value, recognized one character at a time."""

import re
from enum import Enum, auto
from typing import Final

_SPACE: Final = " \t\r\n"
_SCALAR: Final = re.compile(r"true|false|null|-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_IN_SCALAR: Final = frozenset("abcdefghijklmnopqrstuvwxyzE0123456789+-.")
_MAX_SCALAR: Final = 400  # characters; no double has more, written out


class Progress(Enum):
    """What a character did to the value."""

    MORE = auto()  # it belongs to the value, which goes on
    DONE = auto()  # it is the value's last
    BEFORE = auto()  # the value had ended before it
    FAULT = auto()  # no value goes on like this


class _Next(Enum):
    VALUE = auto()
    FIRST_ITEM = auto()
    FIRST_KEY = auto()
    KEY = auto()
    COLON = auto()
    COMMA = auto()
    STRING = auto()
    ESCAPE = auto()
    SCALAR = auto()


class JsonScanner:
    """A scanner of one value, which begins at the first character. Not thread-safe.

    Strings may hold control characters and wrong escapes: models write them, and readers repair them.
    """

    def __init__(self) -> None:
        self._open: list[str] = []
        self._next = _Next.VALUE
        self._is_key = False
        self._scalar = ""

    @property
    def is_in_string(self) -> bool:
        """True within a string."""
        return self._next in (_Next.STRING, _Next.ESCAPE)

    def push(self, char: str) -> Progress:
        """Take one character."""
        match self._next:
            case _Next.STRING:
                return self._in_string(char)
            case _Next.ESCAPE:
                self._next = _Next.STRING
                return Progress.MORE
            case _Next.SCALAR:
                return self._in_scalar(char)
        return Progress.MORE if char in _SPACE else self._between(char)

    def _between(self, char: str) -> Progress:
        expected = self._next
        match char:
            case "}" if expected is _Next.FIRST_KEY or (expected is _Next.COMMA and self._open[-1] == "{"):
                return self._close()
            case "]" if expected is _Next.FIRST_ITEM or (expected is _Next.COMMA and self._open[-1] == "["):
                return self._close()
            case "," if expected is _Next.COMMA:
                self._next = _Next.KEY if self._open[-1] == "{" else _Next.VALUE
                return Progress.MORE
            case ":" if expected is _Next.COLON:
                self._next = _Next.VALUE
                return Progress.MORE
            case '"' if expected in (_Next.KEY, _Next.FIRST_KEY):
                self._is_key, self._next = True, _Next.STRING
                return Progress.MORE
        return self._begin(char) if expected in (_Next.VALUE, _Next.FIRST_ITEM) else Progress.FAULT

    def _begin(self, char: str) -> Progress:
        match char:
            case "{":
                self._open.append(char)
                self._next = _Next.FIRST_KEY
            case "[":
                self._open.append(char)
                self._next = _Next.FIRST_ITEM
            case '"':
                self._is_key, self._next = False, _Next.STRING
            case _ if char in _IN_SCALAR:
                self._scalar, self._next = char, _Next.SCALAR
            case _:
                return Progress.FAULT
        return Progress.MORE

    def _in_string(self, char: str) -> Progress:
        if char == "\\":
            self._next = _Next.ESCAPE
        elif char == '"':
            if self._is_key:
                self._next = _Next.COLON
            else:
                return self._end_value()
        return Progress.MORE

    def _in_scalar(self, char: str) -> Progress:
        if char in _IN_SCALAR and len(self._scalar) < _MAX_SCALAR:
            self._scalar += char
            return Progress.MORE
        if not _SCALAR.fullmatch(self._scalar):
            return Progress.FAULT
        if self._end_value() is Progress.DONE:
            return Progress.BEFORE
        return self.push(char)

    def _close(self) -> Progress:
        self._open.pop()
        return self._end_value()

    def _end_value(self) -> Progress:
        self._next = _Next.COMMA
        return Progress.MORE if self._open else Progress.DONE
