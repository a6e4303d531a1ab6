"""Exact counts of stored prompts, with the served model's tokenizer."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from jobs.prompts import messages
from jobs.prompts.store import CountedPrompt
from jobs.prompts.tokenizer import Tokenizer, pack_ids


@dataclass(frozen=True, slots=True)
class PromptCounter:
    """Counts prompts as the engine will read them; a `texts.Counter`.

    Attributes:
        tokenizer: of the served model.
    """

    tokenizer: Tokenizer

    @property
    def fingerprint(self) -> str:
        """Of the tokenizer and its template."""
        return self.tokenizer.fingerprint

    def count_text(self, text: str) -> int:
        """Tokens of the text alone, without a template.

        Raises:
            UnsafeTextError: as `Tokenizer.encode_text`.
        """
        return self.tokenizer.count_text(text)

    def token_starts(self, text: str) -> npt.NDArray[np.int32]:
        """Find the characters with which the tokens of the text begin; errors as of `count_text`."""
        return self.tokenizer.token_starts(text)

    def count_prompt(self, canonical: str, *, limit: int | None = None) -> CountedPrompt:
        """Make the prompt's ids by the model's chat template; a plain text begins a text as it is.

        Args:
            canonical: the prompt.
            limit: of its tokens; None: there is none.

        Raises:
            ChatTemplateError: the template refuses these messages.
            PromptTooLongError: it has more tokens than `limit`.
            PromptUncountableError: it takes too much memory or time.
        """
        plain = messages.plain_text(canonical)
        if plain is None:
            ids = self.tokenizer.encode_messages(messages.parse(canonical), limit=limit)
        else:
            ids = self.tokenizer.encode_plain(plain, limit=limit)
        return CountedPrompt(
            packed_ids=pack_ids(ids), num_tokens=len(ids), fingerprint=self.tokenizer.fingerprint
        )
