"""The speaker for load tests: cheap tokens, as many as the test wants."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from random import Random

from .extractive import ExtractiveSpeaker
from .speech import Ask, Markup, Script, TokenIds

_TEXT = "The load runs through the engine and every word of this line is as good as any other one here. "
_LENGTH_MARK = re.compile(r"\[\[tokens=(\d+)\]\]")
_THOUGHT = "Let me think: what was asked, what do I know of it, and is that enough to say so? "
_THINKING_MARK = re.compile(r"\[\[think=(\d+)\]\]")
_MARK_TOKENS = 64  # how far from the question's end a length mark may be


@dataclass(frozen=True)
class OutputLength:
    """Lognormal output lengths in tokens; `median` 0 means every request runs to its limit."""

    median: float = 0.0
    sigma: float = 0.5


class SyntheticSpeaker:
    """A speaker whose words depend on the prompt's hash, and on the seed if the request samples.

    The length of the answer is the first of these: the N of a mark `[[tokens=N]]` near the end of the
    question (read only with a tokenizer); a lognormal draw from the request's seed, or from the prompt
    without one; the request's limit. A mark `[[think=N]]` makes the answer begin with N words of thinking
    between the tags of DeepSeek-R1 and Qwen 3, unless the prompt closes them.
    """

    def __init__(self, tokenizer_dir: Path | None, length: OutputLength) -> None:
        self._voice = ExtractiveSpeaker(tokenizer_dir) if tokenizer_dir else None
        self._length = length
        self._ids = self._voice.encode(_TEXT) if self._voice else tuple(range(1000, 1064))
        self.markup = self._voice.markup if self._voice else Markup()

    def script(self, asked: TokenIds, ask: Ask) -> Script:
        """Rotate one line of text. The end token comes only if a length is given."""
        key = hashlib.sha256(asked.tobytes()).hexdigest()
        shift = int(key[:8], 16)
        if (random := ask.generator()) is not None:
            shift += random.randrange(len(self._ids))
        shift %= len(self._ids)
        ids = self._ids[shift:] + self._ids[:shift]
        opening = self._thinking(asked, ask)
        return Script(ids=ids, length=self._num_tokens(asked, ask, key), opening=opening)

    def _thinking(self, asked: TokenIds, ask: Ask) -> tuple[int, ...]:
        """Write the thinking before the answer: the tags with words between them, or nothing."""
        tags = self._voice.tags if self._voice else None
        if self._voice is None or tags is None:
            return ()
        begin, end = tags
        mark = _THINKING_MARK.search(self._voice.message(asked[-_MARK_TOKENS:]))
        # A prompt that closes thinking has the second tag after one token; a continued answer has words.
        is_closed = ask.ids[len(asked) + 2 : len(asked) + 3].tolist() == [end]
        if mark is None or is_closed:
            return ()
        thought = self._voice.encode(_THOUGHT)
        words = [thought[number % len(thought)] for number in range(int(mark[1]))]
        return (
            begin,
            *self._voice.encode("\n"),
            *words,
            *self._voice.encode("\n"),
            end,
            *self._voice.encode("\n\n"),
        )

    def _num_tokens(self, asked: TokenIds, ask: Ask, key: str) -> int | None:
        if self._voice and (mark := _LENGTH_MARK.search(self._voice.message(asked[-_MARK_TOKENS:]))):
            return int(mark[1])
        if self._length.median:
            return lognormal_length(key if ask.seed is None else ask.seed, self._length)
        return None


def lognormal_length(seed: int | str, length: OutputLength) -> int:
    """Draw the number of output tokens for a seed, at least 1."""
    factor: float = Random(seed).lognormvariate(0, length.sigma)  # noqa: S311 reproducible on purpose
    return max(1, round(length.median * factor))
