"""The links of Markdown: where they are in a text, what they name, and the anchors of headings."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_FENCED: Final = re.compile(r"^( *)(```+|~~~+)[^\n]*\n.*?^\1\2 *$", re.MULTILINE | re.DOTALL)
_INLINE: Final = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
_LINK: Final = re.compile(r"\]\(<?([^)\s>]+)>?(?: \"[^\"]*\")?\)")
_HEADING: Final = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)
_ELSEWHERE: Final = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Link:
    """A link to something of this repository.

    Attributes:
        start: of its target in the text.
        end: of its target in the text.
        path: relative to the page; empty: the page itself.
        anchor: a heading of the page; None: its beginning.
    """

    start: int
    end: int
    path: str
    anchor: str | None


def links_of(markdown: str) -> Iterator[Link]:
    """Find the links of a page that lead to no other server; what is code is no link."""
    for found in _LINK.finditer(without_code(markdown)):
        target = found[1]
        if _ELSEWHERE.match(target):
            continue
        path, mark, anchor = target.partition("#")
        yield Link(found.start(1), found.end(1), path, anchor if mark else None)


def anchors_of(markdown: str) -> set[str]:
    """Name the anchors of a page's headings as GitHub does."""
    anchors: set[str] = set()
    for found in _HEADING.finditer(without_fences(markdown)):
        first = name = slug(_plain(found[1]))
        number = 0
        while name in anchors:
            number += 1
            name = f"{first}-{number}"
        anchors.add(name)
    return anchors


def slug(heading: str, separator: str = "-") -> str:
    """Name the anchor of a heading, whose text is plain."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", separator)


def without_code(markdown: str) -> str:
    """Blank what is code; all that is left keeps its place."""
    return _INLINE.sub(_blank, without_fences(markdown))


def without_fences(markdown: str) -> str:
    """Blank blocks of code; all that is left keeps its place."""
    return _FENCED.sub(_blank, markdown)


def _blank(found: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", found[0])


def _plain(heading: str) -> str:
    """Drop what marks code and links in a heading."""
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
