"""What models and strangers write, put into Markdown: it is read, and leads nowhere."""

import re
from typing import Final

# The middle of a link, the end of a reference's name, and what begins an element of HTML or an address.
_LIVE: Final = re.compile(r"\](?=[(:])|<(?=[A-Za-z/!?])")
# What terminals take for commands.
_CONTROLS: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def visible(text: str) -> str:
    """The text without characters that a terminal obeys; line feeds and tabs stay."""
    return _CONTROLS.sub("", text)


def defused(text: str) -> str:
    """The same text, in which headings, lists and emphasis stay and links, images and HTML show as they are.

    A document can make a model write an image, whose address tells its author who has looked, and what the
    address holds. Control characters are gone.
    """
    return _LIVE.sub(lambda found: "]\\" if found[0] == "]" else "&lt;", visible(text))
