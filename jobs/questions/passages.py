"""The passages that a summary quotes, and where they are in its documents."""

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from jobs.questions.quotes import QuotableText, pages_of

# Quotation marks of a kind, as they open and close; single ones are apostrophes too often.
_QUOTED: Final = re.compile(
    r'"([^"\n]{1,2000})"'
    "|\u201c([^\u201c\u201d]{1,2000})\u201d"
    "|\u201e([^\u201c\u201d\u201e]{1,2000})[\u201c\u201d]"
    "|\u00ab([^\u00ab\u00bb]{1,2000})\u00bb"
    "|\u00bb([^\u00ab\u00bb]{1,2000})\u00ab"
    "|\u300c([^\u300c\u300d]{1,2000})\u300d"
    "|\u300e([^\u300e\u300f]{1,2000})\u300f"
)
# What a sentence may add to the words that it quotes.
_ADDED: Final = " \t\r\n.,;:!?"
# Letters of a passage; fewer are a word in quotation marks more often than a quote.
_LEAST_LETTERS: Final = 8
# A summary of 8,192 tokens has few more, and each takes a look through the texts.
MAX_PASSAGES: Final = 100
# Looking through a text of the largest size for all passages takes less, unless it was made to take long.
_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Passage:
    """A passage in quotation marks.

    Attributes:
        at: where it begins in the summary, after its mark.
        text: without the marks.
    """

    at: int
    text: str


@dataclass(frozen=True, slots=True)
class FoundPassage:
    """Where a passage is.

    Attributes:
        is_quoted: None: not every text could be looked through.
        source: the number of the text, from 0; None: it is in none of them.
        place: its first character there, and the one after its last.
        pages: first and last, from 1; None: no pages.
    """

    passage: Passage
    is_quoted: bool | None
    source: int | None = None
    place: tuple[int, int] | None = None
    pages: tuple[int, int] | None = None


def passages(summary: str) -> list[Passage]:
    """List the first passages that the summary has in quotation marks."""
    found: list[Passage] = []
    for match in _QUOTED.finditer(summary):
        kind = match.lastindex or 1
        letters = sum(map(str.isalnum, match[kind]))
        if letters >= _LEAST_LETTERS and len(found) < MAX_PASSAGES:
            found.append(Passage(match.start(kind), match[kind]))
    return found


def find_passages(
    wanted: Sequence[Passage],
    texts: Iterable[tuple[str, Sequence[int]]],
    *,
    is_complete: bool,
    seconds: float = _SECONDS,
) -> list[FoundPassage]:
    """Find each passage in the first text that has it.

    Args:
        wanted: the passages.
        texts: one at a time: a text, and the character at which each of its pages starts.
        is_complete: these are all texts; a passage may be in none.
        seconds: after which it gives up; what it did not look for is left open.
    """
    until = time.monotonic() + seconds
    found: dict[str, FoundPassage] = {}
    left = list({each.text: each for each in wanted}.values())
    for number, (text, starts) in enumerate(texts):
        if not left:
            break
        quotable = QuotableText(text)
        still: list[Passage] = []
        for each in left:
            if time.monotonic() > until:
                is_complete = False
                break
            place = _find(quotable, each.text)
            if place is None:
                still.append(each)
            else:
                found[each.text] = FoundPassage(each, True, number, place, pages_of(starts, *place))
        left = still
    missing = False if is_complete else None
    return [
        FoundPassage(each, known.is_quoted, known.source, known.place, known.pages)
        if (known := found.get(each.text)) is not None
        else FoundPassage(each, missing)
        for each in wanted
    ]


def _find(text: QuotableText, passage: str) -> tuple[int, int] | None:
    """Find the passage, also where the sentence around it changed its end or its first letter."""
    plain = passage.strip(_ADDED)
    turned = plain[:1].swapcase() + plain[1:]
    return next((place for each in (passage, plain, turned) if (place := text.find(each))), None)
