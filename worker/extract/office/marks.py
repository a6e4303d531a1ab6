"""Marks for what plain text cannot show: comments, headers and footers, raised digits, pictures."""

import re
from typing import Final

# Around a comment or equation in its line until the line is whole; XML and RTF have no such characters.
_BEGIN: Final = "\x01"
_END: Final = "\x02"
_AFTER_BRACKET: Final = re.compile(f"(?<=[(\\[]){_BEGIN}")
_BEFORE: Final = re.compile(f"(?<! ) *{_BEGIN}")  # from the first blank on: a run of them takes linear time
_AFTER: Final = re.compile(f"{_END}(?=[\\s.,;:!?)\\]{_BEGIN}]|$)")
_LETTER: Final = re.compile(r"[^\W\d_]")
_SUPERSCRIPTS: Final = str.maketrans("0123456789+-\u2212n", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻ⁿ")
_SUPERSCRIPT: Final = re.compile(r"\s*[0-9+\-\u2212n][0-9+\-\u2212n,\u2013]{0,11}\s*")
_FILE_NAME: Final = re.compile(r"\w+://\S+|.*\.(?:png|jpe?g|gif|bmp|tiff?|[ew]mf|svg|webp)", re.IGNORECASE)


def comment(author: str, text: str) -> str:
    """Return a comment with its author, if that is known."""
    author = " ".join(author.split())
    return f"[Comment by {author}: {text}]" if author else f"[Comment: {text}]"


def margin(kind: str, text: str) -> str:
    """Return a header or footer as a block of its own; empty if it has no words, as a page's number."""
    return f"[{kind}: {text}]\n\n" if _LETTER.search(text) else ""


def raised(text: str) -> str:
    """Return raised text, with digits that stay raised: 10 to the power of 6 is not 106."""
    return text.translate(_SUPERSCRIPTS) if _SUPERSCRIPT.fullmatch(text) else text


def image(description: str | None) -> str:
    """Return the mark of a picture; empty if it has no description but the name of its file."""
    text = " ".join((description or "").split())
    return "" if not text or _FILE_NAME.fullmatch(text) else f"[Image: {text}]"


def letters(column: int) -> str:
    """Return the letters of a sheet's column, from 0 for A."""
    out = ""
    column += 1
    while column > 0:
        column, rest = divmod(column - 1, 26)
        out = chr(65 + rest) + out
    return out


def apart(text: str) -> str:
    """Mark a text so that `tidy` sets it apart from the words around it."""
    return f"{_BEGIN}{text}{_END}"


def tidy(line: str) -> str:
    """Return a line with blanks around what is apart, but none before punctuation or at the ends."""
    if _BEGIN in line:
        line = _BEFORE.sub(" ", _AFTER_BRACKET.sub("", line))
        line = _AFTER.sub("", line).replace(_END, " ")
    return line.strip()
