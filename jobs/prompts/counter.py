"""Exact token counts of stored prompts, from the served model's tokenizer."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from jobs.errors import InvalidRequestError
from jobs.prompts import messages
from jobs.prompts.chat_template import ChatTemplateError, TemplateVariablesError
from jobs.prompts.store import CountedPrompt, Counter
from jobs.prompts.tokenizer import Tokenizer, pack_ids


@dataclass(frozen=True, slots=True)
class PromptCounter:
    """A `store.Counter` that counts prompts exactly as the engine will read them.

    Attributes:
        tokenizer: the served model's.
    """

    tokenizer: Tokenizer

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the tokenizer and its chat template."""
        return self.tokenizer.fingerprint

    def count_text(self, text: str) -> int:
        """Count the tokens of the text alone, without a chat template.

        Raises:
            UnsafeTextError: see `Tokenizer.encode_text`.
        """
        return self.tokenizer.count_text(text)

    def token_starts(self, text: str) -> npt.NDArray[np.int32]:
        """Return the index of each token's first character; see `count_text` for errors."""
        return self.tokenizer.token_starts(text)

    def count_prompt(self, canonical: str, *, limit: int | None = None) -> CountedPrompt:
        """Render the prompt and return its token ids.

        Messages go through the model's chat template; plain text is encoded as it is.

        Args:
            canonical: the prompt.
            limit: the most tokens it may have; None means no limit.

        Raises:
            ChatTemplateError: the template refuses these messages.
            PromptTooLongError: the prompt has more than `limit` tokens.
            PromptUncountableError: counting takes too much memory or time.
        """
        plain = messages.plain_text(canonical)
        if plain is None:
            asked = messages.parse(canonical)
            ids = self.tokenizer.encode_messages(asked.messages, variables=asked.variables, limit=limit)
        else:
            ids = self.tokenizer.encode_plain(plain, limit=limit)
        return CountedPrompt(
            packed_ids=pack_ids(ids),
            num_tokens=len(ids),
            fingerprint=self.tokenizer.fingerprint,
            is_plain=plain is not None,
        )


def count_short(canonical: str, counter: Counter, *, max_chars: int) -> CountedPrompt | None:
    """Count a prompt now if that is quick, before its job is stored.

    Returns:
        None: it has more than `max_chars` characters, or the chat template refuses it. A service worker
        counts it later, meets the same error and fails the job with it.

    Raises:
        InvalidRequestError: the chat template fails with its `chat_template_kwargs`, which are tried however
            long the prompt is.
    """
    try:
        if len(canonical) <= max_chars:
            return counter.count_prompt(canonical)
        if (blank := messages.without_contents(canonical)) is not None:
            counter.count_prompt(blank)
    except TemplateVariablesError as error:
        raise InvalidRequestError(error.message, param=error.param) from None
    except ChatTemplateError:
        pass
    return None
