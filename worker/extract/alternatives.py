"""One text of several that are meant to be the same: the plain form and the HTML of a mail."""

import re
from collections.abc import Sequence
from typing import Final

# A word, or one character of a script without spaces between words.
_WORD: Final = re.compile(r"[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W_]+")
_COVERED: Final = 0.75  # of the words; links and hidden lines of HTML are a part of the rest
_LEAST_OTHER: Final = 3  # words; fewer, in a form that is shorter, are a greeting or the name of a link
_MAX_PLACEHOLDER_CHARS: Final = 500
# In every language, such a line names what the reader lacks.
_PLACEHOLDER: Final = re.compile(
    r"html|mime\b|browser|web.?mail|multipart|mail.{0,20}(?:client|program|reader)|cannot (?:be )?display",
    re.IGNORECASE,
)


def choose(texts: Sequence[str]) -> str:
    """Return the first text, the plain form, unless a later one tells more.

    The first is replaced if it is part of the other, or a placeholder ("This message needs an HTML viewer.").
    A text that has other words than the first is appended to it.
    """
    best = ""
    for text in texts:
        if not text.strip():
            continue
        best = _better(best, text) if best else text
    return best


def covers(text: str, part: str) -> bool:
    """Return True if the text has almost all words of the part."""
    words, wanted = _words(text), _words(part)
    return len(wanted & words) >= _COVERED * len(wanted)


def _better(first: str, second: str) -> str:
    if covers(first, second):
        return first
    is_placeholder = len(first) <= _MAX_PLACEHOLDER_CHARS and _PLACEHOLDER.search(first)
    if is_placeholder or covers(second, first):
        return second
    if len(second) <= len(first) and len(_words(second) - _words(first)) < _LEAST_OTHER:
        return first
    return first.rstrip() + "\n\n" + second.lstrip("\n")


def _words(text: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(text)}
