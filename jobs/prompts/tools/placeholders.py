"""What callers wrote, kept out of a chat template's markup: placeholders that are filled in afterwards."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Final, NoReturn

# A template that writes a text as JSON escapes the quotation mark: so the placeholder tells how it was
# written. Its first and last characters are private ones, which no template holds.
_FORMAT: Final = '\uf8ff{}"\uf8fe'
_PATTERN: Final = re.compile('\uf8ff([0-9]+)(\\\\*)"\uf8fe')
_PRIVATE: Final = re.compile("[\uf8fe\uf8ff]|\\\\uf8f[ef]")


class PlaceholderError(ValueError):
    """The template wrote a placeholder in a way that cannot be undone."""


class ControlPieces:
    """The texts that could become a control token beside other ones; safe to use from several threads."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = [text for text in texts if text]
        self._all = "\0".join(self._texts)
        self._heads = {text[:size] for text in self._texts for size in range(1, len(text))}
        self._tails = {text[size:] for text in self._texts for size in range(1, len(text))}
        self._longest = max(map(len, self._texts), default=0)
        self._pattern = re.compile("|".join(map(re.escape, self._texts)) or "(?!)")

    def are_in(self, text: str) -> bool:
        """Return True if the text could become part of a control token, whatever stands next to it."""
        return any(each in self._all or self.may_form(each) for each in {text, text.strip()} if each)

    def may_form(self, text: str) -> bool:
        """Return True if the text holds a control token, ends with its begin, or begins with its end."""
        if self._pattern.search(text) or _PRIVATE.search(text):
            return True
        return self.begin_in(text) or any(text[:size] in self._tails for size in self._sizes(text))

    def begin_in(self, text: str) -> bool:
        """Return True if the text ends with the begin of a control token."""
        return any(text[-size:] in self._heads for size in self._sizes(text))

    def _sizes(self, text: str) -> range:
        return range(1, min(len(text), self._longest) + 1)


class Placeholders:
    """The placeholders of one prompt."""

    def __init__(self, pieces: ControlPieces) -> None:
        self._pieces = pieces
        self._texts: list[str] = []

    def of(self, text: str) -> str:
        """Return the placeholder of this text."""
        self._texts.append(text)
        return _FORMAT.format(len(self._texts) - 1)

    def tamed(self, value: object) -> object:
        """Replace each text in a JSON value, names included, that could become part of a control token.

        Others stay as they are, since templates compare some: the types of a schema.
        """
        match value:
            case str():
                return self.of(value) if self._pieces.are_in(value) else value
            case Mapping():
                return {str(self.tamed(name)): self.tamed(each) for name, each in value.items()}
            case list() | tuple():
                return [self.tamed(each) for each in value]
            case _:
                return value

    def filled(self, literal: str) -> str:
        """Fill in the texts.

        Raises:
            PlaceholderError: the template changed a placeholder.
        """
        parts = _PATTERN.split(literal)  # literal, index, backslashes, literal, …
        found = parts[:1]
        for index, escapes, after in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
            found += [_escaped(self._texts[int(index)], len(escapes)), after]
        if any(_PRIVATE.search(part) for part in parts[::3]):
            _changed()
        return "".join(found)

    @staticmethod
    def indexes_in(markup: str) -> set[int]:
        """Return the indexes of the texts that a markup holds, in the order of `of`."""
        return {int(index) for index, _ in _PATTERN.findall(markup)}


def _escaped(text: str, num_backslashes: int) -> str:
    """Write a text as a template did that wrote a quotation mark after so many backslashes."""
    times = {0: 0, 1: 1, 3: 2}.get(num_backslashes)
    if times is None:
        _changed()
    for _ in range(times):
        text = json.dumps(text, ensure_ascii=False)[1:-1]
    return text


def _changed() -> NoReturn:
    raise PlaceholderError("it changes the text of messages or tools")
