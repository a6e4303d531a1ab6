"""Log probabilities of an answer's tokens: packed as they are stored, and read in OpenAI's two shapes."""

import struct
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Final, NamedTuple

import zstandard

# What OpenAI writes for a token that is as good as impossible: JSON has no infinity.
LEAST: Final = -9999.0
# Values of one answer at most, one for each token and each alternative: one for each token of the longest
# context that we serve. As JSON they take about 10 MB.
MAX_SCORES: Final = 131_072
# OpenAI's limit.
MAX_TOP: Final = 20

_VERSION: Final = 1
# Version, alternatives of each token, tokens, the visible ones' begin and end, visible tokens and characters
# before the first visible one, tokens that are spelled.
_HEADER: Final = struct.Struct("<BBIIIIII")
_NO_TOKEN: Final = -1
_INT: Final = "i"  # of four bytes wherever we run
_FLOAT: Final = "f"
_BYTES: Final = 4


class Score(NamedTuple):
    """What an engine tells of a token.

    Attributes:
        log_prob: of the token.
        top: the most likely tokens in its place and their log probabilities, the most likely one first.
    """

    log_prob: float
    top: Sequence[tuple[int, float]] = ()


class ScoredTokens:
    """The tokens of an answer with their scores, as it grows. Not thread-safe."""

    def __init__(self, num_top: int, *, spell: Callable[[int], bytes]) -> None:
        """Args: num_top: alternatives to keep of each token. spell: returns the bytes of a token."""
        self._num_top = num_top
        self._spell = spell
        self._ids, self._log_probs = array(_INT), array(_FLOAT)
        self._top_ids, self._top_log_probs = array(_INT), array(_FLOAT)
        self._ends = array(_INT)  # characters of the text up to the end of each token
        self._spelled: dict[int, bytes] = {}

    def __len__(self) -> int:
        """Return the number of tokens."""
        return len(self._ids)

    def add(self, token_id: int, score: Score, *, num_chars: int) -> None:
        """Append a token; with it so many characters of the text became final."""
        top = list(score.top[: self._num_top])
        num_missing = self._num_top - len(top)
        self._ids.append(token_id)
        self._log_probs.append(_bounded(score.log_prob))
        self._top_ids.extend([*(each for each, _ in top), *[_NO_TOKEN] * num_missing])
        self._top_log_probs.extend([*(_bounded(each) for _, each in top), *[LEAST] * num_missing])
        self._ends.append(self._num_chars(len(self._ids) - 1) + num_chars)
        for each in (token_id, *(each for each, _ in top)):
            if each not in self._spelled:
                self._spelled[each] = self._spell(each)

    def num_within(self, num_withheld: int, *, is_final: bool) -> int:
        """Count the tokens before those of the last characters.

        Args:
            num_withheld: characters at the end of the text that are not shown, or not yet.
            is_final: no more text comes. Then a token counts that is shown in part.
        """
        found = len(self._ids)
        if is_final and not num_withheld:
            return found
        limit = self._num_chars(found) - num_withheld
        if is_final:
            while found and self._num_chars(found - 1) >= limit:
                found -= 1
            return found
        while found and self._ends[found - 1] > limit:
            found -= 1
        # The first bytes of a character that is not shown.
        while found and self._ends[found - 1] == self._num_chars(found - 1):
            found -= 1
        return found

    def packed(self, *, begin: int, end: int, first: int = 0) -> bytes:
        """Pack the tokens from `first` on.

        Args:
            begin: the first visible token; those before it are kept only to continue the answer.
            end: the first token after the visible ones.
            first: where to start.
        """
        visible = max(begin, first)
        top = first * self._num_top
        own, alternatives = self._ids[first:], self._top_ids[top:]
        # A few tokens of a long answer are read by themselves.
        spelled = {each: self._spelled[each] for each in (*own, *alternatives) if each != _NO_TOKEN}
        parts = [
            _HEADER.pack(
                _VERSION,
                self._num_top,
                len(own),
                visible - first,
                max(visible, end) - first,
                visible - begin,
                self._num_chars(visible) - self._num_chars(begin),
                len(spelled),
            ),
            own.tobytes(),
            self._log_probs[first:].tobytes(),
            alternatives.tobytes(),
            self._top_log_probs[top:].tobytes(),
            array(_INT, self._lengths(first)).tobytes(),
            array(_INT, spelled).tobytes(),
            array(_INT, map(len, spelled.values())).tobytes(),
            *spelled.values(),
        ]
        return zstandard.ZstdCompressor(level=1).compress(b"".join(parts))

    def _lengths(self, first: int) -> list[int]:
        """Return how many characters each token from this one on made final."""
        return [end - self._num_chars(place) for place, end in enumerate(self._ends[first:], first)]

    def _num_chars(self, num_tokens: int) -> int:
        """Return how many characters the first tokens made final."""
        return self._ends[num_tokens - 1] if num_tokens else 0


@dataclass(frozen=True, slots=True)
class LogProbs:
    """The visible tokens of an answer, or of a part of it, with their scores.

    Attributes:
        first: visible tokens before them.
        ids: of the tokens.
        scores: of each of them.
        offsets: of each in the visible text, in characters.
        spelled: the bytes of each token in them.
        num_top: alternatives of each token that were asked for.
    """

    first: int
    ids: Sequence[int]
    scores: Sequence[Score]
    offsets: Sequence[int]
    spelled: Mapping[int, bytes]
    num_top: int

    def __len__(self) -> int:
        """Return the number of tokens."""
        return len(self.ids)

    @property
    def end(self) -> int:
        """The number of visible tokens up to the last of these."""
        return self.first + len(self.ids)

    def after(self, num_tokens: int) -> "LogProbs | None":
        """Drop the tokens that a reader has who got the first `num_tokens`. Returns None if none is left.

        None also if tokens are missing in between, which the reader gets at the end.
        """
        if num_tokens < self.first or num_tokens >= self.end:
            return None
        new = slice(num_tokens - self.first, None)
        return replace(
            self, first=num_tokens, ids=self.ids[new], scores=self.scores[new], offsets=self.offsets[new]
        )

    def for_chat(self) -> dict[str, Any]:
        """Build the `logprobs` of a chat completion's choice."""
        content = [
            self._told(token_id, score.log_prob)
            | {"top_logprobs": [self._told(each, log_prob) for each, log_prob in score.top]}
            for token_id, score in zip(self.ids, self.scores, strict=True)
        ]
        return {"content": content, "refusal": None}

    def for_text(self) -> dict[str, Any]:
        """Build the `logprobs` of a text completion's choice. The token itself is always among the top."""
        top = [
            {_written(self.spelled[each], prefix="bytes:"): log_prob for each, log_prob in score.top}
            | {_written(self.spelled[token_id], prefix="bytes:"): score.log_prob}
            for token_id, score in zip(self.ids, self.scores, strict=True)
        ]
        return {
            "tokens": [_written(self.spelled[each], prefix="bytes:") for each in self.ids],
            "token_logprobs": [each.log_prob for each in self.scores],
            "top_logprobs": top if self.num_top else None,
            "text_offset": list(self.offsets),
        }

    def _told(self, token_id: int, log_prob: float) -> dict[str, Any]:
        spelled = self.spelled[token_id]
        return {"token": _written(spelled), "logprob": log_prob, "bytes": list(spelled)}


def read(packed: bytes) -> LogProbs:
    """Read the visible tokens of what `ScoredTokens.packed` wrote."""
    content = _Unpacked.of(packed)
    visible = slice(content.begin, content.end)
    lengths = content.lengths[visible]
    offsets = accumulate(lengths[:-1], initial=content.num_chars) if lengths else ()
    return LogProbs(
        first=content.num_before,
        ids=content.ids[visible],
        scores=content.scores[visible],
        offsets=tuple(offsets),
        spelled=content.spelled,
        num_top=content.num_top,
    )


def read_scores(packed: bytes) -> Sequence[Score]:
    """Read the scores of all tokens, so that another run can go on after them."""
    return _Unpacked.of(packed).scores


@dataclass(frozen=True, slots=True)
class _Unpacked:
    """The content of what was packed; see `_HEADER`. `lengths`: characters that each token made final."""

    num_top: int
    begin: int
    end: int
    num_before: int
    num_chars: int
    ids: Sequence[int]
    scores: Sequence[Score]
    lengths: Sequence[int]
    spelled: Mapping[int, bytes]

    @classmethod
    def of(cls, packed: bytes) -> "_Unpacked":
        content = memoryview(zstandard.ZstdDecompressor().decompress(packed))
        version, num_top, size, begin, end, num_before, num_chars, num_spelled = _HEADER.unpack_from(content)
        if version != _VERSION:
            raise ValueError(f"log probabilities of version {version}")
        place = _HEADER.size

        def next_values(code: str, number: int) -> "array[Any]":
            nonlocal place
            found = array(code, bytes(content[place : place + number * _BYTES]))
            place += number * _BYTES
            return found

        ids, log_probs = next_values(_INT, size), next_values(_FLOAT, size)
        top_ids, top_log_probs = next_values(_INT, size * num_top), next_values(_FLOAT, size * num_top)
        lengths = next_values(_INT, size)
        names, sizes = next_values(_INT, num_spelled), next_values(_INT, num_spelled)
        every = [*zip(top_ids, top_log_probs, strict=True)]
        tops = [
            [(each, log_prob) for each, log_prob in every[at * num_top : (at + 1) * num_top] if each >= 0]
            for at in range(size)
        ]
        spelled: dict[int, bytes] = {}
        for name, length in zip(names, sizes, strict=True):
            spelled[name] = bytes(content[place : place + length])
            place += length
        return cls(
            num_top=num_top,
            begin=begin,
            end=end,
            num_before=num_before,
            num_chars=num_chars,
            ids=ids.tolist(),
            scores=[Score(own, top) for own, top in zip(log_probs, tops, strict=True)],
            lengths=lengths.tolist(),
            spelled=spelled,
        )


def _bounded(log_prob: float) -> float:
    """Return a value that JSON can hold; no number at all counts as the least."""
    return min(log_prob, 0.0) if log_prob > LEAST else LEAST


def _written(spelled: bytes, *, prefix: str = "") -> str:
    """Write a token as text; one that ends inside a character by its bytes, as OpenAI does."""
    try:
        return spelled.decode()
    except UnicodeDecodeError:
        return prefix + "".join(f"\\x{each:02x}" for each in spelled)
