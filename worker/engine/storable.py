"""Text that Postgres can store: models and servers may write what it cannot."""

import re
from typing import Final

# Postgres stores neither NUL nor lone surrogates; a model can write the first.
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")
# Characters kept of a server's message; a stack trace may follow it.
_MAX_SAID: Final = 500


def storable(words: str) -> str:
    """Cut a server's message to what a row and a log line can hold: no NUL, no stack trace."""
    return sanitize(words[:_MAX_SAID])[0]


def sanitize(text: str) -> tuple[str, bool]:
    """Replace what Postgres cannot store by U+FFFD. Returns the text, and True if it changed."""
    replaced, num_replaced = _UNSTORABLE.subn("\ufffd", text)
    return replaced, num_replaced > 0
