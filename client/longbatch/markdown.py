"""Untrusted text in Markdown, made safe: it can be read, but not followed or executed."""

import re
from typing import Final

# The middle of a link, the end of a reference's name, and the start of an HTML element or an address.
_LIVE: Final = re.compile(r"\](?=[(:])|<(?=[A-Za-z/!?])")
# What terminals interpret as commands.
_CONTROLS: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")

_BREAKS: Final = re.compile("[\t\n\u2028\u2029]")
_TURNS: Final = re.compile("[\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    """Remove the characters that a terminal interprets, except line feeds and tabs."""
    return _CONTROLS.sub("", text)


def on_one_line(text: str) -> str:
    """Make text visible, with a blank for each line end or tab, and without marks that turn its direction."""
    return _BREAKS.sub(" ", _TURNS.sub("", visible(text.replace("\r\n", "\n").replace("\r", "\n"))))


def defused(text: str) -> str:
    """Turn links, images and HTML into visible text; keep headings and lists.

    A document can make a model write an image, whose address, when fetched, reveals the reader and any data
    it carries to the document's author. Emphasis stays; control characters go.
    """
    return _LIVE.sub(lambda found: "]\\" if found[0] == "]" else "&lt;", visible(text))
