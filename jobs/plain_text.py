"""Text into ordinary tokens: never a control token, whatever it holds, and in bounded memory."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import tokenizers

from jobs.chat_template import ChatTemplateError, ControlToken, control_pattern

TokenIds = npt.NDArray[np.int32]

# The tokenizers library takes about 350 bytes for each token of a text while it encodes: 0.7 GB for 8 MiB of
# English. In parts of this size it stays under 0.2 GB; prompts that fit an engine need one part.
PART_CHARS: Final = 1_000_000
_REACH: Final = 10_000  # characters before the end of a part in which an end of a word is looked for
_AFTER_WORD: Final = " \n,.;:!?\u3001\u3002\uff01\uff0c\uff1a\uff1b\uff1f"
_END_OF_WORD: Final = re.compile(rf"[^\W\d_](?=[{_AFTER_WORD}])")


class UnsafeTextError(ChatTemplateError):
    """The tokenizer turns plain text into a control token."""

    code = "unsafe_text"


class PlainEncoder:
    """A tokenizer that matches no control token in text; frozen, and safe to use from several threads."""

    def __init__(
        self, backend: tokenizers.Tokenizer, serialized: bytes, *, part_chars: int = PART_CHARS
    ) -> None:
        """Takes over `backend`, whose flags it changes, and its serialized form."""
        controls = control_tokens(backend)
        self._tokenizer = _plain(backend, serialized)
        self._control_pattern = control_pattern(controls)
        self._control_ids = np.array([token.id for token in controls], dtype=np.int32)
        self._first_control_id = self._control_ids.min(initial=2**31 - 1)
        self._part_chars = part_chars
        self._can_be_cut = _ends_words_everywhere(self._tokenizer)

    def encode(self, text: str) -> TokenIds:
        """The text as ordinary tokens: no beginning-of-text, no control tokens.

        Raises:
            UnsafeTextError: the tokenizer cannot write it without control tokens.
        """
        ids = concatenate([self._encode(part) for part in self._parts(text)])
        if not self._has_control(ids):
            return ids
        # The vocabulary holds control tokens as ordinary pieces too (SentencePiece's </s>): cut them apart.
        cuts = [
            cut
            for match in self._control_pattern.finditer(text)
            for cut in (match.start(match.lastgroup or 0) + 1, match.end())
        ]
        bounds = zip([0, *cuts], [*cuts, len(text)], strict=True)
        ids = concatenate([self._encode(text[start:end]) for start, end in bounds])
        if self._has_control(ids):
            raise UnsafeTextError
        return ids

    def _encode(self, text: str) -> TokenIds:
        # Unlike `encode` it releases the interpreter lock; and it is faster, as it keeps no offsets.
        (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
        return np.array(encoding.ids, dtype=np.int32)

    def _has_control(self, ids: TokenIds) -> bool:
        if ids.max(initial=-1) < self._first_control_id:  # spares nearly every text the search
            return False
        return bool(np.isin(ids, self._control_ids).any())

    def _parts(self, text: str) -> Iterator[str]:
        """The text cut at ends of words, so that its parts together have the tokens of the whole."""
        reach = min(_REACH, self._part_chars)
        start, size = 0, self._part_chars
        while self._can_be_cut and len(text) - start > size:
            end = start + size
            ends_of_words = [match.end() for match in _END_OF_WORD.finditer(text, end - reach, end)]
            if not ends_of_words:
                size += reach
                continue
            yield text[start : ends_of_words[-1]]
            start, size = ends_of_words[-1], self._part_chars
        yield text[start:]


def control_tokens(backend: tokenizers.Tokenizer) -> tuple[ControlToken, ...]:
    """The added tokens that text must never become: all but those for runs of white space."""
    added = backend.get_added_tokens_decoder()
    return tuple(
        ControlToken(token.content, token_id, strips_left=token.lstrip, strips_right=token.rstrip)
        for token_id, token in added.items()
        if not token.content.isspace()
    )


def concatenate(parts: Sequence[TokenIds]) -> TokenIds:
    """The ids one after the other."""
    return np.concatenate([np.empty(0, dtype=np.int32), *parts])


def _plain(backend: tokenizers.Tokenizer, serialized: bytes) -> tokenizers.Tokenizer:
    """A tokenizer that matches no control token in text; the same object where a flag is enough."""
    # Set once, before any thread sees the object: it is a property of the object, not of a call.
    backend.encode_special_tokens = True
    backend.no_truncation()
    backend.no_padding()
    added = backend.get_added_tokens_decoder().values()
    if all(token.special or token.content.isspace() for token in added):
        return backend
    document = json.loads(serialized)
    document |= {"truncation": None, "padding": None}
    # Left out, they would shift the ids of those that stay; called special, the flag covers them.
    for token in document["added_tokens"]:
        token["special"] = not token["content"].isspace()
    plain = tokenizers.Tokenizer.from_str(json.dumps(document))
    plain.encode_special_tokens = True
    return plain


def _ends_words_everywhere(tokenizer: tokenizers.Tokenizer) -> bool:
    """Whether tokens never reach over an end of a word, as in the family of GPT-2, Llama 3 and Qwen.

    There a pattern cuts the text that looks at nothing before a word, and after a letter no word goes on with
    white space or punctuation. Nothing else may change the text (a normalizer) or match across words (tokens
    for runs of white space).
    """
    if tokenizer.normalizer is not None or tokenizer.pre_tokenizer is None:
        return False
    if any(token.content.isspace() for token in tokenizer.get_added_tokens_decoder().values()):
        return False
    outer = json.loads(tokenizer.pre_tokenizer.__getstate__())
    steps = outer["pretokenizers"] if outer["type"] == "Sequence" else [outer]
    if any(step["type"] not in {"Split", "ByteLevel"} or step.get("add_prefix_space") for step in steps):
        return False
    return all(
        tokenizer.pre_tokenizer.pre_tokenize_str(f"ab{after}cd")[0][0] == "ab" for after in _AFTER_WORD
    )
