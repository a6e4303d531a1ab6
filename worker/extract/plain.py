"""Plain text and Markdown: every character unchanged."""

import re
from typing import Final

from worker.extract.draft import TextBuilder
from worker.extract.encodings import decode

_HEADING: Final = re.compile(r"^#{1,6}[ \t]+(.+?)[ \t]*#*$", re.MULTILINE)
_TITLE_WITHIN: Final = 20_000  # characters


def read_text(raw: bytes, draft: TextBuilder) -> None:
    """Read plain text: exactly the file."""
    draft.write_as_it_is(decode(raw, draft))


def read_markdown(raw: bytes, draft: TextBuilder) -> None:
    """Read Markdown: exactly the file; the first heading is the title."""
    text = decode(raw, draft)
    draft.write_as_it_is(text)
    draft.set_title(first_heading(text))


def first_heading(text: str) -> str | None:
    """Return the first heading of a Markdown text, if it has one near its beginning."""
    heading = _HEADING.search(text, 0, _TITLE_WITHIN)
    return heading[1] if heading else None
