"""Text encoded as ordinary tokens, never control tokens, in bounded memory and time."""

import json
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from itertools import accumulate, chain
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt
import tokenizers

from jobs.errors import PromptTooLongError
from jobs.prompts.chat_template import ChatTemplateError, ControlToken, control_pattern
from jobs.prompts.text_windows import WINDOW_CHARS, NoSeamError, TokenIds, TokenSpan, WindowEncoder
from jobs.prompts.token_lengths import TokenLengths
from jobs.prompts.uncut_text import ChildLimits, encode_in_child

__all__ = ["SHORT_CHARS", "PlainEncoder", "TokenIds", "UnsafeTextError", "concatenate", "control_tokens"]

T = TypeVar("T")

# A text that cannot be cut is encoded in this process up to this size, which takes 200 MB at most.
_WHOLE_BYTES: Final = 2**19
# Texts of up to this length may share a call; longer ones gain nothing by it.
SHORT_CHARS: Final = 16_384
# Pieces of a prompt that are kept with their ids: the words that a chat template writes.
_WORD_CHARS: Final = 16
_MAX_KNOWN: Final = 256


class UnsafeTextError(ChatTemplateError):
    """The tokenizer turns plain text into a control token."""

    code = "unsafe_text"


class UnknownTokenError(ChatTemplateError):
    """A token id is not in the model's vocabulary."""

    code = "invalid_value"


class PlainEncoder:
    """An encoder that matches no control token in text; immutable, and safe to use from several threads."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        serialized: bytes,
        *,
        window_chars: int = WINDOW_CHARS,
        whole_bytes: int = _WHOLE_BYTES,
        limits: ChildLimits | None = None,
    ) -> None:
        """Take ownership of `backend` and change its flags.

        Args:
            backend: the model's tokenizer.
            serialized: the same tokenizer, as the library serializes it.
            window_chars: characters to encode at once.
            whole_bytes: longer texts that cannot be cut are encoded in a child process.
            limits: of that child process; None means the defaults.
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
        """Encode the text as ordinary tokens, without beginning-of-text or control tokens.

        Args:
            text: to encode.
            limit: the most tokens it may have; None means no limit.

        Raises:
            UnsafeTextError: the tokenizer cannot encode it without control tokens.
            PromptTooLongError: it has more than `limit` tokens.
            PromptUncountableError: it takes too much memory or time.
        """
        if limit is None and len(text) <= self._window_chars:
            return self._encode_apart(text)
        return concatenate(self._collect(text, lambda _text, part: part.ids, limit=limit))

    def encode_piece(self, text: str) -> TokenIds:
        """Encode a piece of a prompt as `encode` does; the caller must not change the ids.

        Chat templates write the same few words around every content.
        """
        return self._known(text) if len(text) <= _WORD_CHARS else self.encode(text)

    def encode_together(self, prompts: Sequence[Sequence[int | str]]) -> list[TokenIds | None]:
        """Encode the pieces of many short prompts, ids and texts, in one call, on all cores.

        Returns:
            None in the place of a prompt with a text that must be encoded by itself.
        """
        encoded = self._encode_texts(
            piece for pieces in prompts for piece in pieces if isinstance(piece, str)
        )
        return _concatenate_each(
            [encoded[piece] if isinstance(piece, str) else one(piece) for piece in pieces]
            for pieces in prompts
        )

    def _encode_texts(self, texts: Iterable[str]) -> dict[str, TokenIds | None]:
        """Encode short texts in one call, each as `encode` would.

        Returns:
            The ids by text; None: it must be encoded by itself, as it is long or holds control tokens.
        """
        found: dict[str, TokenIds | None] = dict.fromkeys(texts)
        short = [text for text in found if len(text) <= SHORT_CHARS]
        encodings = self._tokenizer.encode_batch_fast(short, add_special_tokens=False)
        ids = [encoding.ids for encoding in encodings]
        ends = list(accumulate(map(len, ids), initial=0))
        tokens = np.fromiter(chain.from_iterable(ids), dtype=np.int32, count=ends[-1])
        may_control = self._has_control(tokens)
        for text, start, end in zip(short, ends, ends[1:], strict=False):
            its_own = tokens[start:end]
            found[text] = None if may_control and self._has_control(its_own) else its_own
        return found

    def count(self, text: str, *, limit: int | None = None) -> int:
        """Count the tokens of the text; arguments and errors are those of `encode`."""
        return sum(self._collect(text, lambda _text, part: len(part.ids), limit=limit))

    def starts(self, text: str) -> npt.NDArray[np.int32]:
        """Return the index of the first character of each token.

        A token that begins inside a character gets the index of the next one. The indexes are approximate if
        the tokenizer's texts cannot be cut into windows (each slice is then tokenized alone), or if
        normalization composes characters.
        """
        if self._windows is None:
            return concatenate(
                [self._starts_of_slice(text, at) for at in range(0, len(text), self._window_chars)]
            )
        found = concatenate(self._collect(text, self._starts_of_part))
        return np.minimum(found, len(text) - 1)

    def _starts_of_part(self, text: str, part: TokenSpan) -> npt.NDArray[np.int32]:
        encoded = np.frombuffer(text[part.start : part.end].encode(), dtype=np.uint8)
        chars = np.cumsum((encoded & 0xC0) != 0x80, dtype=np.int32)
        ends = np.cumsum(self._lengths.of_bytes[part.ids], dtype=np.int64)
        # The number of characters that begin before each token's first byte.
        before = np.concatenate([np.zeros(1, dtype=np.int32), chars[np.minimum(ends[:-1], len(chars)) - 1]])[
            : len(ends)
        ]
        found: npt.NDArray[np.int32] = (before + part.start).astype(np.int32)
        return found

    def _starts_of_slice(self, text: str, at: int) -> npt.NDArray[np.int32]:
        some = text[at : at + self._window_chars]
        (encoding,) = self._tokenizer.encode_batch([some], add_special_tokens=False)
        return np.array([at + start for start, _ in encoding.offsets], dtype=np.int32)

    def _collect(
        self, text: str, take: Callable[[str, TokenSpan], T], *, limit: int | None = None
    ) -> list[T]:
        """Encode the text; return `take(normalized text, part)` for each part."""
        if limit is not None and len(text) > limit:
            self._check_least(text, limit)
        if len(text) > self._window_chars and self._windows is not None:
            normal = self._normalized(text)
            with suppress(NoSeamError):
                return _within(limit, self._window_parts(normal, self._windows), partial(take, normal))
        return _within(limit, [TokenSpan(self._encode_apart(text), 0, len(text))], partial(take, text))

    @cached_property
    def _known(self) -> Callable[[str], TokenIds]:
        return lru_cache(maxsize=_MAX_KNOWN)(self._encode_apart)

    @cached_property
    def _lengths(self) -> TokenLengths:
        return TokenLengths(self._tokenizer)

    @cached_property
    def _windows(self) -> WindowEncoder | None:
        """Created for the first long text: reading the vocabulary takes a third of a second."""
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
        """Return True if text can become this token: it is a piece and one pre-token."""
        content = self._tokenizer.id_to_token(token_id) or ""
        pre_tokenizer = self._tokenizer.pre_tokenizer
        if self._tokenizer.model.token_to_id(content) is None or pre_tokenizer is None:
            return pre_tokenizer is None
        return len(pre_tokenizer.pre_tokenize_str(content)) == 1

    def _check_least(self, text: str, limit: int) -> None:
        """Raise PromptTooLongError if a cheap lower bound exceeds `limit`."""
        if self._windows is None or self._tokenizer.normalizer is not None:
            return
        least = self._lengths.least_tokens(text)
        if least > limit:
            raise PromptTooLongError(at_least=least, limit=limit)

    def _window_parts(self, text: str, windows: WindowEncoder) -> Iterator[TokenSpan]:
        for found in windows.parts(text):
            part = found
            if not found.is_encoded:
                part = replace(found, ids=self._encode(text[found.start : found.end]))
            if self._has_control(part.ids):
                raise UnsafeTextError
            yield part

    def _normalized(self, text: str) -> str:
        """Normalize the text as the tokenizer does, a piece at a time."""
        normalizer = self._tokenizer.normalizer
        if normalizer is None:
            return text
        pieces: list[str] = []
        start = 0
        while start < len(text):
            end = min(len(text), start + self._window_chars)
            while end < len(text) and not _is_nfc_boundary(text[end]):
                end += 1
            pieces.append(normalizer.normalize_str(text[start:end]))
            start = end
        return "".join(pieces)

    def _encode_apart(self, text: str) -> TokenIds:
        """Encode the text whole; if that yields control tokens, cut it inside them."""
        ids = self._encode(text)
        if not self._has_control(ids):
            return ids
        # The vocabulary also holds control tokens as ordinary pieces (SentencePiece's </s>): cut them apart.
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
        """Encode the text whole: in this process if that is cheap, otherwise in a child."""
        if len(text) > self._whole_bytes // 4 and len(text.encode()) > self._whole_bytes:
            return np.frombuffer(encode_in_child(self._tokenizer, text, self._limits), dtype=np.int32)
        # Unlike `encode`, it releases the interpreter lock and is faster, as it keeps no offsets.
        (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
        return np.array(encoding.ids, dtype=np.int32)

    def _has_control(self, ids: TokenIds) -> bool:
        if not ids.size or np.maximum.reduce(ids) < self._first_control_id:  # nearly every text
            return False
        return bool(np.isin(ids, self._control_ids).any())


def control_tokens(backend: tokenizers.Tokenizer) -> tuple[ControlToken, ...]:
    """Return the added tokens that text must never become: all but white space."""
    added = backend.get_added_tokens_decoder()
    return tuple(
        ControlToken(token.content, token_id, strips_left=token.lstrip, strips_right=token.rstrip)
        for token_id, token in added.items()
        if not token.content.isspace()
    )


def concatenate(parts: Sequence[TokenIds]) -> TokenIds:
    """Concatenate the ids; no parts give an empty array."""
    return np.concatenate([np.empty(0, dtype=np.int32), *parts])


@lru_cache(maxsize=256)
def one(token_id: int) -> TokenIds:
    """Return the ids of a single token; the caller must not change them."""
    return np.array([token_id], dtype=np.int32)


def _concatenate_each(prompts: Iterable[Sequence[TokenIds | None]]) -> list[TokenIds | None]:
    """Concatenate the ids of each prompt; None: a part of it is missing.

    One array holds all of them, as most are a few tokens long.
    """
    parts: list[TokenIds] = []
    lengths: list[int | None] = []
    for ids in prompts:
        whole = [each for each in ids if each is not None]
        is_whole = len(whole) == len(ids)
        lengths.append(sum(map(len, whole)) if is_whole else None)
        parts += whole if is_whole else ()
    tokens, ends = concatenate(parts), accumulate(each or 0 for each in lengths)
    return [
        None if length is None else tokens[end - length : end]
        for length, end in zip(lengths, ends, strict=True)
    ]


def _within(limit: int | None, parts: Iterable[TokenSpan], take: Callable[[TokenSpan], T]) -> list[T]:
    """Apply `take` to every part; raise PromptTooLongError beyond `limit` tokens."""
    taken: list[T] = []
    num_tokens = 0
    for part in parts:
        num_tokens += len(part.ids)
        if limit is not None and num_tokens > limit:
            raise PromptTooLongError(at_least=num_tokens, limit=limit)
        taken.append(take(part))
    return taken


def _is_nfc_boundary(character: str) -> bool:
    """Return True if NFC never joins this character with one before it."""
    # It may join marks, Hangul vowels and unknown characters.
    return unicodedata.category(character)[0] not in "MC" and not "\u1160" <= character <= "\u11ff"


def _plain(backend: tokenizers.Tokenizer, serialized: bytes) -> tokenizers.Tokenizer:
    """Return a tokenizer that matches no control token; `backend` if a flag is enough."""
    # Set once, before any thread sees the object: the flag belongs to the object, not to a call.
    backend.encode_special_tokens = True
    backend.no_truncation()
    backend.no_padding()
    added = backend.get_added_tokens_decoder().values()
    if all(token.special or token.content.isspace() for token in added):
        return backend
    document = json.loads(serialized)
    document |= {"truncation": None, "padding": None}
    # Removing them would shift the ids of the others; marked as special, they are covered by the flag.
    for token in document["added_tokens"]:
        token["special"] = not token["content"].isspace()
    plain = tokenizers.Tokenizer.from_str(json.dumps(document))
    plain.encode_special_tokens = True
    return plain
