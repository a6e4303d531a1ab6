"""Control tokens as text, for servers that accept no token ids, and those around texts to embed."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import tokenizers

from jobs.prompts.chat_template import BLANKS_BEFORE, ControlToken
from jobs.prompts.encoding import PlainEncoder, TokenIds, UnknownTokenError, UnsafeTextError, concatenate
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

    def id_of(self, control: str) -> int:
        """Return the id of a control token."""
        return self._ids[control]

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
        (BLANKS_BEFORE * control.strips_left) + re.escape(control.text) + (r"\s*" * control.strips_right)
        for control in longest_first
    )
    return re.compile("|".join(alternatives) or "(?!)")


@dataclass(frozen=True, slots=True)
class Frame:
    """The tokens that a tokenizer puts around every text that is to be embedded.

    Attributes:
        before: a beginning, such as `[CLS]`; often none.
        after: an end, such as `[SEP]`.
    """

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    @classmethod
    def of(
        cls, backend: tokenizers.Tokenizer, config: Mapping[str, object], *, bos_id: int | None, eos_id: int
    ) -> Self:
        """Find out what the tokenizer adds; its configuration overrides its own way."""
        bare = backend.encode("a", add_special_tokens=False).ids
        whole = backend.encode("a").ids
        starts = range(len(whole) - len(bare) + 1)
        at = next((each for each in starts if whole[each : each + len(bare)] == bare), 0)
        before, after = tuple(whole[:at]), tuple(whole[at + len(bare) :])
        has_bos = bos_id is not None and before[:1] == (bos_id,)
        if bos_id is not None and adds_bos(backend, config, bos_id) != has_bos:
            before = before[1:] if has_bos else (bos_id, *before)
        if config.get("add_eos_token") is True and not after:
            after = (eos_id,)
        return cls(before, after)

    def around(self, given: str | Sequence[int], *, num_tokens: int) -> list[int | str]:
        """Put the tokens around a text; token ids are taken as they are.

        Args:
            given: the text or the ids.
            num_tokens: of the vocabulary.

        Raises:
            UnknownTokenError: an id is not in the vocabulary.
        """
        if isinstance(given, str):
            return [*self.before, given, *self.after]
        if (largest := max(given, default=0)) >= num_tokens:
            message = f"The token id {largest} is not in the model's vocabulary of {num_tokens} tokens."
            raise UnknownTokenError(message)
        return [*given]


def adds_bos(backend: tokenizers.Tokenizer, config: Mapping[str, object], bos_id: int | None) -> bool:
    """Return True if a text begins with `bos_id`; the configuration overrides the tokenizer's own way."""
    if bos_id is None:
        return False
    told = config.get("add_bos_token")
    return told if isinstance(told, bool) else backend.encode("a").ids[:1] == [bos_id]
