"""Incremental detokenization: token ids in, text out, never half a character."""

import codecs
from collections.abc import Iterable, Mapping

from jobs.prompts.tokenizer import Tokenizer


class Detokenizer:
    """An incremental decoder from one answer's ids to its text.

    The results of `push` and the final `flush` add up to `tokenizer.decode(all ids)`, however the ids are
    split. It holds back at most three bytes, of an incomplete character. Time is linear in the ids.
    """

    def __init__(self, tokenizer: Tokenizer, *, shown: Mapping[int, str] | None = None) -> None:
        """Args: shown: tokens that are written as this text, though they may be special."""
        self._token_bytes = tokenizer.token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._shown = {token_id: text.encode() for token_id, text in (shown or {}).items()}
        self._drops_space = self._token_bytes.drops_first_space

    def push(self, ids: Iterable[int]) -> str:
        """Return the text that these ids make final. Special tokens have none."""
        return self._without_first_space(
            self._decoder.decode(b"".join([self._bytes_of(token_id) for token_id in ids]))
        )

    def _bytes_of(self, token_id: int) -> bytes:
        return self._shown.get(token_id) or self._token_bytes[token_id]

    def flush(self) -> str:
        """Return the rest of the text: U+FFFD if the ids ended inside a character."""
        return self._without_first_space(self._decoder.decode(b"", final=True))

    def _without_first_space(self, text: str) -> str:
        if not self._drops_space or not text:
            return text
        self._drops_space = False
        return text.removeprefix(" ")
