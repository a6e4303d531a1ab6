"""Text into ordinary tokens: never a control token, whatever it holds, in bounded memory and time."""

import json
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt
import tokenizers

from jobs.errors import PromptTooLongError
from jobs.prompts.chat_template import ChatTemplateError, ControlToken, control_pattern
from jobs.prompts.text_windows import WINDOW_CHARS, NoSeamError, Part, TokenIds, WindowEncoder
from jobs.prompts.token_lengths import TokenLengths
from jobs.prompts.uncut_text import ChildLimits, encode_in_child

__all__ = ["PlainEncoder", "TokenIds", "UnsafeTextError", "concatenate", "control_tokens"]

T = TypeVar("T")

# A text without places to cut is encoded in this process up to so many bytes, which takes 200 MB at most.
_WHOLE_BYTES: Final = 2**19


class UnsafeTextError(ChatTemplateError):
    """The tokenizer turns plain text into a control token."""

    code = "unsafe_text"


class PlainEncoder:
    """A tokenizer that matches no control token in text; frozen, and safe to use from several threads."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        serialized: bytes,
        *,
        window_chars: int = WINDOW_CHARS,
        whole_bytes: int = _WHOLE_BYTES,
        limits: ChildLimits | None = None,
    ) -> None:
        """Take over `backend`, whose flags it changes, and its serialized form.

        Args:
            backend: of the model.
            serialized: as the library writes it.
            window_chars: characters that are encoded at once.
            whole_bytes: a longer text that cannot be cut is encoded by a child process.
            limits: of that child.
        """
        controls = control_tokens(backend)
        self._tokenizer = _plain(backend, serialized)
        self._control_pattern = control_pattern(controls)
        self._control_ids = np.array([token.id for token in controls], dtype=np.int32)
        self._first_control_id = self._control_ids.min(initial=2**31 - 1)
        self._window_chars = window_chars
        self._whole_bytes = whole_bytes
        self._limits = limits or ChildLimits()

    def encode(self, text: str, *, limit: int | None = None) -> TokenIds:
        """Encode the text as ordinary tokens: no beginning-of-text, no control tokens.

        Args:
            text: to encode.
            limit: of its tokens; None: there is none.

        Raises:
            UnsafeTextError: the tokenizer cannot write it without control tokens.
            PromptTooLongError: it has more tokens than `limit`.
            PromptUncountableError: it takes too much memory or time.
        """
        return concatenate(self._collect(text, lambda _text, part: part.ids, limit=limit))

    def count(self, text: str, *, limit: int | None = None) -> int:
        """Count the tokens of the text; arguments and errors as of `encode`."""
        return sum(self._collect(text, lambda _text, part: len(part.ids), limit=limit))

    def starts(self, text: str) -> npt.NDArray[np.int32]:
        """Find the characters with which the tokens of the text begin.

        A token that begins within a character counts to the next one. Where texts are not cut into windows,
        or characters are composed, places are about right: tokens are then found a stretch at a time.
        """
        if self._windows is None:
            return concatenate(
                [self._starts_of_slice(text, at) for at in range(0, len(text), self._window_chars)]
            )
        found = concatenate(self._collect(text, self._starts_of_part))
        return np.minimum(found, len(text) - 1)

    def _starts_of_part(self, text: str, part: Part) -> npt.NDArray[np.int32]:
        encoded = np.frombuffer(text[part.start : part.end].encode(), dtype=np.uint8)
        chars = np.cumsum((encoded & 0xC0) != 0x80, dtype=np.int32)
        ends = np.cumsum(self._lengths.of_bytes[part.ids], dtype=np.int64)
        # Characters that began before each token's first byte.
        before = np.concatenate([np.zeros(1, dtype=np.int32), chars[np.minimum(ends[:-1], len(chars)) - 1]])[
            : len(ends)
        ]
        found: npt.NDArray[np.int32] = (before + part.start).astype(np.int32)
        return found

    def _starts_of_slice(self, text: str, at: int) -> npt.NDArray[np.int32]:
        some = text[at : at + self._window_chars]
        (encoding,) = self._tokenizer.encode_batch([some], add_special_tokens=False)
        return np.array([at + start for start, _ in encoding.offsets], dtype=np.int32)

    def _collect(self, text: str, take: Callable[[str, Part], T], *, limit: int | None = None) -> list[T]:
        """Encode the text and return what `take` makes of each part and the text that it is a part of."""
        if limit is not None and len(text) > limit:
            self._check_least(text, limit)
        if len(text) > self._window_chars and self._windows is not None:
            normal = self._normalized(text)
            with suppress(NoSeamError):
                return _within(limit, self._window_parts(normal, self._windows), partial(take, normal))
        return _within(limit, [Part(self._encode_apart(text), 0, len(text))], partial(take, text))

    @cached_property
    def _lengths(self) -> TokenLengths:
        return TokenLengths(self._tokenizer)

    @cached_property
    def _windows(self) -> WindowEncoder | None:
        """Made for the first long text: it reads the vocabulary, which takes a third of a second."""
        if self._tokenizer.normalizer is not None and not self._normalizes_to_nfc:
            return None
        if any(self._spells(token_id) for token_id in self._control_ids.tolist()):
            return None
        return WindowEncoder.of(self._tokenizer, self._lengths, window_chars=self._window_chars)

    @cached_property
    def _normalizes_to_nfc(self) -> bool:
        normalizer = self._tokenizer.normalizer
        return normalizer is not None and json.loads(normalizer.__getstate__()) == {"type": "NFC"}

    def _spells(self, token_id: int) -> bool:
        """Whether the model may make this control token of text: as an ordinary piece, of one pre-token."""
        content = self._tokenizer.id_to_token(token_id) or ""
        pre_tokenizer = self._tokenizer.pre_tokenizer
        if self._tokenizer.model.token_to_id(content) is None or pre_tokenizer is None:
            return pre_tokenizer is None
        return len(pre_tokenizer.pre_tokenize_str(content)) == 1

    def _check_least(self, text: str, limit: int) -> None:
        """Return when the text may have no more tokens than this, found without encoding it."""
        if self._windows is None or self._tokenizer.normalizer is not None:
            return
        least = self._lengths.least_tokens(text)
        if least > limit:
            raise PromptTooLongError(at_least=least, limit=limit)

    def _window_parts(self, text: str, windows: WindowEncoder) -> Iterator[Part]:
        for found in windows.parts(text):
            part = found
            if not found.is_encoded:
                part = replace(found, ids=self._encode(text[found.start : found.end]))
            if self._has_control(part.ids):
                raise UnsafeTextError
            yield part

    def _normalized(self, text: str) -> str:
        """Bring the text into the form that the tokenizer encodes, a piece at a time."""
        normalizer = self._tokenizer.normalizer
        if normalizer is None:
            return text
        pieces: list[str] = []
        start = 0
        while start < len(text):
            end = min(len(text), start + self._window_chars)
            while end < len(text) and not _starts_anew(text[end]):
                end += 1
            pieces.append(normalizer.normalize_str(text[start:end]))
            start = end
        return "".join(pieces)

    def _encode_apart(self, text: str) -> TokenIds:
        """Encode the text whole, and in pieces where it spells control tokens if it must be."""
        ids = self._encode(text)
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
        """Encode the text whole: here if that is cheap, otherwise in a child process."""
        if len(text) > self._whole_bytes // 4 and len(text.encode()) > self._whole_bytes:
            return np.frombuffer(encode_in_child(self._tokenizer, text, self._limits), dtype=np.int32)
        # Unlike `encode` it releases the interpreter lock; and it is faster, as it keeps no offsets.
        (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
        return np.array(encoding.ids, dtype=np.int32)

    def _has_control(self, ids: TokenIds) -> bool:
        if ids.max(initial=-1) < self._first_control_id:  # spares nearly every text the search
            return False
        return bool(np.isin(ids, self._control_ids).any())


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


def _within(limit: int | None, parts: Iterable[Part], take: Callable[[Part], T]) -> list[T]:
    """Take every part, as long as they have no more tokens than the limit."""
    taken: list[T] = []
    num_tokens = 0
    for part in parts:
        num_tokens += len(part.ids)
        if limit is not None and num_tokens > limit:
            raise PromptTooLongError(at_least=num_tokens, limit=limit)
        taken.append(take(part))
    return taken


def _starts_anew(character: str) -> bool:
    """Whether NFC never joins this character with one before it: no mark, no Hangul vowel, no unknown one."""
    return unicodedata.category(character)[0] not in "MC" and not "\u1160" <= character <= "\u11ff"


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
