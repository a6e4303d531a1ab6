"""Long texts encoded window by window, with exactly the tokens that they have as a whole.

A text can be cut in two kinds of places. Both hold for byte-level BPE whose pattern consists of the
alternatives listed below: none looks back, and each scans one run of letters, digits, marks or white space
and looks at one character after it.

1. Between two pre-tokens. The pattern restarts after each pre-token, so nothing before it matters. Text after
   a window matters only to an attempt that scans to the window's end. Such an attempt starts at a suffix of
   the window that is one run of letters, digits, marks with line ends, or white space. Within the window each
   of the first three is one pre-token, and white space is at most two (up to its last line end, and the
   rest). So all but the last two pre-tokens of a window are also pre-tokens of the whole text. A pre-token
   always ends between letters and digits, between these and punctuation or white space, and before a blank
   after punctuation: such a place needs no search.

2. Between two tokens of one pre-token, such as 20 million kanji or one repeated letter. BPE merges the
   leftmost adjacent pair of the lowest rank for as long as it can. Tokens only grow, so no merge ever crosses
   a boundary of the result; on each side of it the merges are those of that side alone, in the same order.
   Hence any run of tokens in a result is the result of its own text. And results can be glued: if BPE
   turns `at` into `A, t` and `tb` into `t, B`, with the same single token `t`, then it turns `atb` into
   `A, t, B`. Proof: take the first merge that crosses an edge of `t` in `atb`, say its left one. Until then
   the merges in `at` are, in order, those of BPE on `at` alone, and the crossing pair is the best there too:
   BPE on `at` would take it and have no boundary there. So two windows that overlap and share one token are
   glued at it. Each window determines where the one before it ends, up to the end of the pre-token.

   The second window begins inside a pre-token, in the middle of a run of one kind of characters that is
   longer than any token. The pattern continues with such a run as if it had begun there. It also does so
   inside a run of blanks and line ends, where `BlankRuns` allows it. Neither window's part of the pre-token
   is short enough to be a token by itself, which is all that `ignore_merges` looks at.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Self

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers import models

from jobs.prompts.blank_runs import MARGIN, BlankRuns
from jobs.prompts.token_bytes import BYTES_OF_CHARACTERS
from jobs.prompts.token_lengths import TokenLengths

TokenIds = npt.NDArray[np.int32]

# The tokenizers library takes about 350 bytes for each token while it encodes: 80 MB for a window of emoji.
WINDOW_CHARS: Final = 65_536
_REACH: Final = 2_000  # characters before a window's end that are searched for the end of a word or number
_UNSURE: Final = 2  # pre-tokens at a window's end that may depend on what follows: see above
_TRIES: Final = 4

_AFTER_WORD: Final = " \n,.;:!?\u3001\u3002\uff01\uff0c\uff1a\uff1b\uff1f"
# A run of marks absorbs line ends, but no blanks.
_END_OF_WORD: Final = re.compile(
    rf"[^\W_](?=[{_AFTER_WORD}])|[^\W\d_](?=[0-9])|[0-9](?=[^\W\d_])|[^\w\s](?=[ \t])"
)

_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# GPT-2, GPT-4 (cl100k), Llama 3, Qwen 2.
_RUNS: Final = frozenset(
    {
        *_GPT2.split("|"),
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        "'(?i:[sdmt]|ll|ve|re)",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"[^\r\n\p{L}\p{N}]?+\p{L}+",
        r"\p{N}",
        r"\p{N}{1,3}",
        r"\p{N}{1,3}+",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r" ?[^\s\p{L}\p{N}]++[\r\n]*",
        r"\s*[\r\n]+",
        r"\s*[\r\n]",
    }
)
# GPT-4o (o200k), Llama 4: a capital can end a run of letters, so no window begins inside one.
_CASED: Final = frozenset(
    prefix + letters + "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    for prefix in (r"[^\r\n\p{L}\p{N}]?",)
    for letters in (
        r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
        r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    )
) | {r" ?[^\s\p{L}\p{N}]+[\r\n/]*"}
_ALTERNATIVE: Final = re.compile(r"(?:\((?:[^()]|\([^()]*\))*\)|\[[^\]]*\]|\\.|[^|])+")


class NoSeamError(Exception):
    """The text has no place at which it can safely be cut."""


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """A stretch of a text and its tokens.

    Attributes:
        ids: the token ids.
        start, end: the stretch, in characters of the text.
        is_encoded: False if the stretch cannot be cut and is not encoded here; `ids` is then empty.
    """

    ids: TokenIds
    start: int
    end: int
    is_encoded: bool = True


@dataclass(frozen=True)
class _Window:
    """A window of a text, with its tokens and their positions.

    Attributes:
        bounds: number of bytes before each token, then the total.
        leads: for each byte, whether a character begins with it.
    """

    start: int
    end: int
    ids: TokenIds
    bounds: npt.NDArray[np.int64]
    leads: npt.NDArray[np.bool_]

    @cached_property
    def chars(self) -> npt.NDArray[np.int64]:
        """Number of characters that begin before each byte, then the total."""
        return np.concatenate([[0], np.cumsum(self.leads)])

    def byte_at(self, place: int) -> int:
        """Return the index of the first byte of the character at `place` in the text."""
        return (
            int(np.searchsorted(self.chars, place - self.start + 1)) - 1
            if place < self.end
            else len(self.leads)
        )

    def token_at(self, byte: int) -> int:
        """Return the index of the token that begins at this byte.

        Raises:
            NoSeamError: no token begins there.
        """
        found = int(np.searchsorted(self.bounds, byte))
        if found == len(self.bounds) or self.bounds[found] != byte:
            raise NoSeamError
        return found

    def last_token(self, place: int) -> int:
        """Return the index of the last token at or before `place` that begins a character."""
        token = int(np.searchsorted(self.bounds, self.byte_at(place), side="right")) - 1
        while not self.leads[self.bounds[token]]:
            token -= 1
        return token

    def since(self, token: int) -> "_Window":
        """Return the window from this token on; the token must begin a character."""
        byte = int(self.bounds[token])
        start = self.start + int(self.chars[byte])
        return _Window(start, self.end, self.ids[token:], self.bounds[token:] - byte, self.leads[byte:])


class WindowEncoder:
    """An encoder for texts of any length with memory for one window; safe to use from several threads."""

    def __init__(
        self, tokenizer: tokenizers.Tokenizer, lengths: TokenLengths, *, window_chars: int, enters_words: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._lengths = lengths
        # Far longer than the longest token, so that overlapping windows soon share one.
        self._span = 4 * lengths.longest
        self._size = max(window_chars, 8)
        self._enters_words = enters_words

    @classmethod
    def of(
        cls, tokenizer: tokenizers.Tokenizer, lengths: TokenLengths, *, window_chars: int = WINDOW_CHARS
    ) -> Self | None:
        """Create an encoder for this tokenizer.

        Returns:
            The encoder; None if no safe places to cut are known for this tokenizer.
        """
        alternatives = _alternatives(tokenizer)
        if not alternatives or not _merges_bytes(tokenizer) or not alternatives <= _RUNS | _CASED:
            return None
        return cls(tokenizer, lengths, window_chars=window_chars, enters_words=alternatives <= _RUNS)

    def parts(self, text: str) -> Iterator[TokenSpan]:
        """Encode the text in parts that tile it and together have exactly its tokens.

        Raises:
            NoSeamError: an earlier cut turns out not to be provable; discard the parts so far.
        """
        start, known = 0, None
        blanks = BlankRuns(text)
        while start < len(text):
            end = known.end if known else self._end_of_window(text, start)
            if end == len(text):
                yield TokenSpan(known.ids if known else self._encode(text[start:]), start, end)
                return
            cut = self._end_of_word(text, max(start + 1, end - _REACH), end)
            if cut is None and (glued := self._glue(text, start, end, known, blanks)):
                left, known = glued
                yield left
                start = left.end
                continue
            cut = cut or self._pre_token(text, start, end) or self._end_of_word(text, start + 1, end)
            if cut is None and known:
                raise NoSeamError
            if cut is None:
                cut = self._next_end_of_word(text, end)
                yield TokenSpan(np.empty(0, dtype=np.int32), start, cut, is_encoded=False)
            elif known:
                yield TokenSpan(known.ids[: known.token_at(known.byte_at(cut))], start, cut)
            else:
                yield TokenSpan(self._encode(text[start:cut]), start, cut)
            start, known = cut, None

    def _end_of_window(self, text: str, start: int) -> int:
        """Return the end of the window at `start`, leaving no short window over."""
        return len(text) if len(text) - start <= self._size * 3 // 2 else start + self._size

    def _end_of_word(self, text: str, low: int, high: int) -> int | None:
        """Find the last end of a word or number in this stretch; None if there is none."""
        ends = [match.end() for match in _END_OF_WORD.finditer(text, low, high)]
        # Python and the tokenizer may follow different versions of Unicode: the tokenizer decides.
        return next((end for end in reversed(ends[-_TRIES:]) if self._is_end_of_word(text, end)), None)

    def _next_end_of_word(self, text: str, start: int) -> int:
        """Find the first end of a word or number from `start` on, or the end of the text."""
        ends = (match.end() for match in _END_OF_WORD.finditer(text, start))
        return next((end for end in ends if self._is_end_of_word(text, end)), len(text))

    def _is_end_of_word(self, text: str, end: int) -> bool:
        return len(self._pre_tokens(text[end - 1 : end + 1])) == 2

    def _pre_token(self, text: str, start: int, end: int) -> int | None:
        """Find the last certain start of a pre-token in the window; None if there is none.

        Not after white space: a run of it alone is one pre-token, but gives its last blank to what follows.
        """
        found = self._pre_tokens(text[start:end])
        places = (start + bounds[0] for _, bounds in reversed(found[1 : 1 - _UNSURE]))
        return next((place for place in places if not text[place - 1].isspace()), None)

    def _pre_tokens(self, text: str) -> list[tuple[str, tuple[int, int]]]:
        pre_tokenizer = self._tokenizer.pre_tokenizer
        return pre_tokenizer.pre_tokenize_str(text) if pre_tokenizer else []

    def _glue(
        self, text: str, start: int, end: int, known: _Window | None, blanks: BlankRuns
    ) -> tuple[TokenSpan, _Window] | None:
        """Glue the window to the next at a token they share, inside a pre-token.

        Returns:
            The part before that token, and the next window from it on; None if they share none.
        """
        window = known
        for attempt in range(2, 2 + _TRIES if self._enters_words else 2):
            # The next window begins at a token that begins a character, this far before the end.
            latest = end - attempt * self._span
            low = latest - self._lengths.longest - MARGIN
            high = latest + self._span
            # If it restarts inside this stretch, after the margin, the pattern continues as before.
            if low < start or not (self._is_one_kind(text[low:high]) or blanks.hold(start, low, high, end)):
                continue
            window = window or self._window(text, start, end)
            token = window.last_token(latest)
            place = window.start + int(window.chars[window.bounds[token]])
            if place < low:  # this text's tokens begin inside characters
                continue
            following = self._window(text, place, self._end_of_window(text, place))
            most_bytes = len(text[place : place + self._span // 2].encode())
            if shared := _shared(window, token, following, most_bytes):
                rest = following.since(shared[1])
                return TokenSpan(window.ids[: shared[0]], start, rest.start), rest
        return None

    def _is_one_kind(self, text: str) -> bool:
        """Return True if the text is all letters, all marks, or all one run of digits."""
        return any(len(self._pre_tokens(f"{kind}{text}{kind}")) == 1 for kind in "a!0")

    def _window(self, text: str, start: int, end: int) -> _Window:
        """Encode one window.

        Raises:
            NoSeamError: its tokens do not spell its bytes.
        """
        some = text[start:end]
        ids = self._encode(some)
        bounds = np.concatenate([[0], np.cumsum(self._lengths.of_bytes[ids], dtype=np.int64)])
        encoded = np.frombuffer(some.encode(), dtype=np.uint8)
        if bounds[-1] != len(encoded):
            raise NoSeamError
        return _Window(start, end, ids, bounds, (encoded & 0xC0) != 0x80)

    def _encode(self, text: str) -> TokenIds:
        # Unlike `encode`, it releases the interpreter lock and is faster, as it keeps no offsets.
        (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
        return np.array(encoding.ids, dtype=np.int32)


def _shared(window: _Window, token: int, following: _Window, most_bytes: int) -> tuple[int, int] | None:
    """Find the first token at the same bytes in both; return its indexes, or None."""
    ours = window.bounds[token:] - window.bounds[token]
    theirs = following.bounds
    ours, theirs = ours[ours <= most_bytes], theirs[theirs <= most_bytes]
    most = int(most_bytes) + 1
    _, left, right = np.intersect1d(
        ours[:-1] * most + ours[1:], theirs[:-1] * most + theirs[1:], return_indices=True
    )
    for mine, other in zip(left.tolist(), right.tolist(), strict=True):
        if following.leads[theirs[other]]:
            return token + mine, other
    return None


def _alternatives(tokenizer: tokenizers.Tokenizer) -> frozenset[str]:
    """List the alternatives of the pre-token pattern; empty if it has another form."""
    if tokenizer.pre_tokenizer is None:
        return frozenset()
    outer = json.loads(tokenizer.pre_tokenizer.__getstate__())
    match outer["pretokenizers"] if outer["type"] == "Sequence" else [outer]:
        case [{"type": "ByteLevel", "use_regex": True, "add_prefix_space": False}]:
            return frozenset(_ALTERNATIVE.findall(_GPT2))
        case [
            {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "use_regex": False, "add_prefix_space": False},
        ]:
            return frozenset(_ALTERNATIVE.findall(pattern))
    return frozenset()


def _merges_bytes(tokenizer: tokenizers.Tokenizer) -> bool:
    """Return True if this is plain BPE: every byte is a token, tokens are only bytes."""
    model = tokenizer.model
    return (
        isinstance(model, models.BPE)
        and not model.dropout
        and not model.continuing_subword_prefix
        and not model.end_of_word_suffix
        and not model.byte_fallback
        and all(model.token_to_id(each) is not None for each in BYTES_OF_CHARACTERS)
        and not any(token.content.isspace() for token in tokenizer.get_added_tokens_decoder().values())
    )
