"""Exact token counts of stored prompts, from the served model's tokenizer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from jobs.errors import InvalidRequestError, PromptTooLongError
from jobs.prompts import messages
from jobs.prompts.chat_template import ChatTemplateError, TemplateVariablesError, ToolsNotTakenError
from jobs.prompts.encoding import SHORT_CHARS
from jobs.prompts.prefixes import NO_DIGESTS, digests
from jobs.prompts.store import CountedPrompt, Counter, SetCounter
from jobs.prompts.tokenizer import TokenIds, Tokenizer, pack_ids

__all__ = ["SHORT_CHARS", "TOGETHER_CHARS", "PromptCounter", "count_short", "count_some"]

# Characters that one call of the tokenizer gets: some 60,000 tokens, about 0.1 s of CPU and 10 MB.
TOGETHER_CHARS: Final = 2**18
_FIRST_CHARS: Final = 2**14


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

        Messages go through the model's chat template; plain text is encoded as it is, and what is to be
        embedded between the tokens that the tokenizer puts around a text.

        Args:
            canonical: the prompt.
            limit: the most tokens it may have; None means no limit.

        Raises:
            ChatTemplateError: the template refuses these messages.
            PromptTooLongError: the prompt has more than `limit` tokens.
            PromptUncountableError: counting takes too much memory or time.
        """
        plain, given = messages.plain_text(canonical), messages.embedded_input(canonical)
        if given is not None:
            return self._counted(self._encode_input(given, limit=limit), is_reused=False)
        if plain is None:
            asked = messages.parse(canonical)
            ids = self.tokenizer.encode_messages(
                asked.messages, variables=asked.variables, tools=asked.tools, limit=limit
            )
        else:
            ids = self.tokenizer.encode_plain(plain, limit=limit)
        return self._counted(ids, is_plain=plain is not None)

    def count_together(self, canonicals: Sequence[str]) -> list[CountedPrompt | None]:
        """Count many short prompts in one call, on all cores; each exactly as `count_prompt` does.

        Returns:
            None in the place of a prompt that must be counted by itself: it is long or cannot be rendered.
        """
        rendered = [self._pieces(each) for each in canonicals]
        encoded = iter(self.tokenizer.encode_together([each for each in rendered if each is not None]))
        found: list[CountedPrompt | None] = []
        for pieces, canonical in zip(rendered, canonicals, strict=True):
            ids = None if pieces is None else next(encoded)
            if ids is None:
                found.append(None)
                continue
            is_reused = messages.embedded_input(canonical) is None
            found.append(self._counted(ids, is_plain=messages.is_plain(canonical), is_reused=is_reused))
        return found

    def _encode_input(self, given: str | Sequence[int], *, limit: int | None) -> TokenIds:
        """Encode what is to be embedded."""
        if limit is not None and not isinstance(given, str) and len(given) > limit:
            raise PromptTooLongError(at_least=len(given), limit=limit)
        pieces = self.tokenizer.frame.around(given, num_tokens=self.tokenizer.num_tokens)
        return self.tokenizer.encode_pieces(pieces, limit=limit)

    def _pieces(self, canonical: str) -> list[int | str] | None:
        try:
            plain, given = messages.plain_text(canonical), messages.embedded_input(canonical)
            if given is not None:
                return self.tokenizer.frame.around(given, num_tokens=self.tokenizer.num_tokens)
            if plain is None:
                asked = messages.parse(canonical)
                return self.tokenizer.pieces_of(asked.messages, variables=asked.variables, tools=asked.tools)
        except (ChatTemplateError, ValueError):
            return None
        return [plain] if self.tokenizer.bos_id is None else [self.tokenizer.bos_id, plain]

    def _counted(self, ids: TokenIds, *, is_plain: bool = False, is_reused: bool = True) -> CountedPrompt:
        """Pack what was counted; of what no engine keeps for others, no beginnings are hashed."""
        return CountedPrompt(
            packed_ids=pack_ids(ids),
            num_tokens=len(ids),
            fingerprint=self.tokenizer.fingerprint,
            is_plain=is_plain,
            prefixes=digests(ids) if is_reused else NO_DIGESTS,
        )


def count_some(
    canonicals: Sequence[str], counter: SetCounter, *, max_chars: int
) -> Iterator[CountedPrompt | None]:
    """Count short prompts together, a bounded and at first small number of characters at a time.

    Lazily, so that a caller who stops early has few counted in vain.

    Yields:
        None for a prompt that has more than `max_chars` characters, and as `Counter.count_together`.
    """
    done, most = 0, _FIRST_CHARS
    while done < len(canonicals):
        chunk: list[str] = []
        num_chars = 0
        for each in canonicals[done:]:
            num_chars += len(each) if len(each) <= max_chars else 0
            if chunk and num_chars > most:
                break
            chunk.append(each)
        found = iter(_count_together([each for each in chunk if len(each) <= max_chars], counter))
        yield from (next(found) if len(each) <= max_chars else None for each in chunk)
        done, most = done + len(chunk), min(2 * most, TOGETHER_CHARS)


def _count_together(short: Sequence[str], counter: SetCounter) -> Sequence[CountedPrompt | None]:
    try:
        return counter.count_together(short) if short else ()
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException:  # noqa: BLE001  # a tokenizer's panic is not an Exception; each is counted by itself
        return [None] * len(short)


def count_short(canonical: str, counter: Counter, *, max_chars: int, model: str = "") -> CountedPrompt | None:
    """Count a prompt now if that is quick, before its job is stored.

    Args:
        canonical: the prompt.
        counter: counts it.
        max_chars: the most characters that are counted now.
        model: whose prompt it is, for errors.

    Returns:
        None: it has more than `max_chars` characters, or the chat template refuses it. A service worker
        counts it later, meets the same error and fails the job with it.

    Raises:
        InvalidRequestError: the chat template fails with its `chat_template_kwargs`, or takes no tools; both
            are tried however long the prompt is.
    """
    try:
        if len(canonical) <= max_chars:
            return counter.count_prompt(canonical)
        if (blank := messages.without_contents(canonical)) is not None:
            counter.count_prompt(blank)
    except ToolsNotTakenError as error:
        raise error.refusal(model) from None
    except TemplateVariablesError as error:
        raise InvalidRequestError(error.message, param=error.param) from None
    except ChatTemplateError:
        pass
    return None
