"""Prompts as text, for servers that accept no token ids: control tokens written out, and read back."""

import re
from collections.abc import Sequence

import numpy as np

from jobs.prompts.chat_template import ControlToken
from jobs.prompts.encoding import PlainEncoder, TokenIds, UnsafeTextError, concatenate
from jobs.prompts.token_bytes import TokenBytes


class Markup:
    """A two-way conversion between ids and a server's prompt text; safe to use from several threads."""

    def __init__(
        self, token_bytes: TokenBytes, controls: Sequence[ControlToken], plain: PlainEncoder
    ) -> None:
        self._token_bytes = token_bytes
        self._plain = plain
        self._pattern = _pattern_of(controls)
        self._controls = {control.id: control.text.encode() for control in controls}
        self._ids = {control.text: control.id for control in controls}

    def write(self, ids: TokenIds) -> str:
        """Write these ids as text.

        Raises:
            UnsafeTextError: a server would read no text as these ids. Most likely a document in the prompt
                spells a control token, which only ids distinguish from a real one.
        """
        pieces = [self.bytes_of(each) for each in ids.tolist()]
        try:
            text = b"".join(pieces).decode()
        except UnicodeDecodeError as error:
            raise UnsafeTextError("The prompt's token ids are not valid UTF-8 text.") from error
        text = text.removeprefix(" ") if self._token_bytes.drops_first_space else text
        if not np.array_equal(self.read(text), ids):
            raise UnsafeTextError(
                "The prompt contains the text of control tokens (for example <|eot_id|>). This engine takes"
                " only text and would treat it as real control tokens."
            )
        return text

    def bytes_of(self, token_id: int) -> bytes:
        """Return the bytes of a token; a control token's are its text."""
        return self._controls.get(token_id) or self._token_bytes[token_id]

    def read(self, text: str) -> TokenIds:
        """Encode a text as a server does: text that spells a control token becomes one."""
        parts: list[TokenIds] = []
        position = 0
        for match in self._pattern.finditer(text):
            parts += [
                self._plain.encode(text[position : match.start()]),
                np.array([self._ids[match[0].strip()]], dtype=np.int32),
            ]
            position = match.end()
        return concatenate([*parts, self._plain.encode(text[position:])])


def _pattern_of(controls: Sequence[ControlToken]) -> re.Pattern[str]:
    """Compile a pattern for control tokens and the white space they absorb.

    Longest first. It has no groups, so `re` sees the prefix that all alternatives share and skips to it,
    which is a hundred times as fast.
    """
    longest_first = sorted(controls, key=lambda control: len(control.text), reverse=True)
    alternatives = (
        (r"\s*" * control.strips_left) + re.escape(control.text) + (r"\s*" * control.strips_right)
        for control in longest_first
    )
    return re.compile("|".join(alternatives) or "(?!)")
