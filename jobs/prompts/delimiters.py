"""Lines around a document in a prompt, chosen so that the document cannot end early."""

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, count
from typing import Final

# Closing tags as models read them, less strictly than parsers: in any case, in full width, with blanks or
# zero-width characters between their parts.
_GAP: Final = r"[\s\u00ad\u200b-\u200d\u2060\ufeff]*+"
_FULL_WIDTH: Final = 0xFEE0  # added to an ASCII character
_WORD: Final = "".join(f"[{letter}{chr(ord(letter) + _FULL_WIDTH)}]" for letter in "document")
_CLOSING_TAGS: Final = re.compile(
    rf"[<\uff1c\ufe64]{_GAP}[/\uff0f\u2215\u2044]{_GAP}{_WORD}{_GAP}"
    rf"(?:[-\u2010-\u2015\u2212\uff0d]{_GAP}(\d++){_GAP})?[>\uff1e\ufe65]",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Delimiters:
    """The lines around a text that does not contain them."""

    opening: str = "<document>"
    closing: str = "</document>"


def delimiters(texts: Iterable[str]) -> Delimiters:
    """Choose lines that none of these texts contains: nearly always the usual ones.

    Takes one pass, so a document full of closing tags costs no more.
    """
    numbers = chain.from_iterable(_CLOSING_TAGS.findall(text) for text in texts)
    taken = {unicodedata.normalize("NFKC", number) for number in numbers}
    free = next(number for number in chain([""], map(str, count(2))) if number not in taken)
    suffix = f"-{free}" if free else ""
    return Delimiters(f"<document{suffix}>", f"</document{suffix}>")
