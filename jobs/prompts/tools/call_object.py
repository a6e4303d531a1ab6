"""One call as models write it in JSON, an object with a name and arguments, read as it grows."""

import json
from collections.abc import Collection
from enum import Enum, auto
from typing import Final

from jobs.prompts.tools import frames
from jobs.prompts.tools.json_scanner import JsonScanner, Progress

_SPACE: Final = " \t\r\n"
_NAMES: Final = frozenset({"name", "function"})
_ARGUMENTS: Final = frozenset({"arguments", "parameters"})


class CallState(Enum):
    """How far a call has come."""

    OPEN = auto()  # it may still turn out to be none
    BEGUN = auto()  # it is a call: its name is known, and its arguments begin
    BROKEN = auto()  # its arguments are not JSON, and go on until its end is found otherwise
    CLOSED = auto()
    REFUSED = auto()  # it is no call


class _Next(Enum):
    BRACE = auto()
    KEY = auto()
    IN_KEY = auto()
    COLON = auto()
    VALUE = auto()
    IN_VALUE = auto()
    COMMA = auto()


class CallObject:
    """One such object, given one character at a time. Not thread-safe.

    Attributes:
        state: how far it has come.
    """

    def __init__(self, names: Collection[str], *, needs_arguments: bool) -> None:
        """Args: names: of the functions; needs_arguments: an object without any is no call."""
        self.state = CallState.OPEN
        self._names = names
        self._needs_arguments = needs_arguments
        self._next = _Next.BRACE
        self._scanner = JsonScanner()
        self._written = ""  # of the present key or value
        self._key = ""
        self._name: str | None = None
        self._arguments: str | None = None
        self._is_streaming = False  # the present value is arguments, passed on as they come
        self._out: list[str] = []

    def push(self, char: str) -> bool:
        """Take one character.

        Returns:
            False: the object had ended before it.
        """
        match self._next:
            case _Next.IN_KEY:
                self._in_key(char)
            case _Next.IN_VALUE:
                return self._in_value(char)
            case _ if char in _SPACE:
                pass
            case _:
                return self._between(char)
        return True

    def take(self) -> str:
        """Return what is new of the call, framed; nothing while it may be none."""
        new, self._out = "".join(self._out), []
        return new

    def push_broken(self, char: str) -> None:
        """Append a character to arguments that are not JSON."""
        self._out.append(escaped(char) if char in frames.MARKS else char)

    def _between(self, char: str) -> bool:
        match self._next, char:
            case (_Next.BRACE, "{") | (_Next.COMMA, ","):
                self._next = _Next.KEY
            case (_Next.KEY, '"'):
                self._scanner, self._written, self._next = JsonScanner(), "", _Next.IN_KEY
                self._in_key(char)
            case (_Next.COLON, ":"):
                self._next = _Next.VALUE
            case (_Next.COMMA, "}"):
                self._close()
            case (_Next.VALUE, _):
                self._begin_value(char)
                return self._in_value(char)
            case _:
                return self._fault()
        return True

    def _in_key(self, char: str) -> None:
        self._written += char
        # A text by itself is a whole value.
        if self._scanner.push(char) is Progress.DONE:
            found = _loaded(self._written)
            self._key, self._next = found if isinstance(found, str) else "", _Next.COLON

    def _begin_value(self, char: str) -> None:
        self._scanner, self._written, self._next = JsonScanner(), "", _Next.IN_VALUE
        is_first = self._key in _ARGUMENTS and self._arguments is None
        if is_first and char == "{" and self._name is not None:
            self._begin(self._name)
            self._arguments, self._is_streaming = "", True

    def _in_value(self, char: str) -> bool:
        was_in_string = self._scanner.is_in_string
        progress = self._scanner.push(char)
        if progress is Progress.FAULT:
            return self._fault()
        if progress is not Progress.BEFORE:
            shown = escaped(char) if was_in_string and char < " " else char
            if self._is_streaming:
                self._out.append(shown)
            else:
                self._written += shown
        if progress is Progress.MORE:
            return True
        self._next = _Next.COMMA
        if not self._is_streaming:
            self._end_value()
        self._is_streaming = False
        return True if progress is Progress.DONE or self.state is CallState.REFUSED else self.push(char)

    def _end_value(self) -> None:
        """Look at a whole value that was not passed on."""
        if self._key in _NAMES and self._name is None:
            found = _loaded(self._written)
            if not isinstance(found, str) or found not in self._names:
                self._refuse()
                return
            self._name = found
        elif self._key in _ARGUMENTS and self._arguments is None:
            self._arguments = _as_arguments(self._written)
            if self._arguments is None:
                self._refuse()
        if self.state is CallState.OPEN and self._name is not None and self._arguments is not None:
            self._begin(self._name)
            self._out.append(self._arguments)

    def _begin(self, name: str) -> None:
        self.state = CallState.BEGUN
        self._out.append(f"{frames.CALL}{name}{frames.ARGUMENTS}")

    def _close(self) -> None:
        if self.state is CallState.OPEN and self._name is not None and not self._needs_arguments:
            self._begin(self._name)
            self._out.append("{}")
        self.state = CallState.CLOSED if self.state is CallState.BEGUN else CallState.REFUSED

    def _refuse(self) -> None:
        self.state = CallState.REFUSED

    def _fault(self) -> bool:
        if self.state is not CallState.BEGUN:
            self._refuse()
            return True
        if not self._is_streaming:  # its arguments are whole; what follows is no part of it
            self.state = CallState.CLOSED
            return False
        self.state = CallState.BROKEN
        return False


def escaped(char: str) -> str:
    """Write a control character as JSON does."""
    return json.dumps(char)[1:-1]


def _loaded(written: str) -> object:
    try:
        found: object = json.loads(written, strict=False)
    except (ValueError, RecursionError):
        return None
    return found


def _as_arguments(written: str) -> str | None:
    """Return arguments that came before their call's name, or as a text of JSON.

    Returns:
        None: they are no arguments.
    """
    if written == "null":
        return "{}"
    if written.startswith("{"):
        return written
    found = _loaded(written)
    return found if isinstance(found, str) and isinstance(_loaded(found), dict) else None
