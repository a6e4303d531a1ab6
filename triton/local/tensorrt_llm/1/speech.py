"""The scripted answer of a sequence, and where in its prompt the answer begins."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

TokenIds = NDArray[np.int32]


@dataclass(frozen=True)
class Markup:
    """A chat template's markup of turns: `<start> role <end> blank line …`; by default Llama 3's ids."""

    start_header: int = 128006
    end_header: int = 128007
    end_of_turn: int = 128009
    blank_line: tuple[int, ...] = (271,)

    def headers(self, ids: TokenIds) -> list[tuple[int, int, int]]:
        """Find each turn: the positions where its header starts, its role ends and its content starts."""
        ends = np.flatnonzero(ids == self.end_header)
        found = []
        for start in np.flatnonzero(ids == self.start_header):
            later = ends[ends > start]
            if len(later):
                content = int(later[0]) + 1
                blank = len(self.blank_line)
                content += blank * (tuple(ids[content : content + blank]) == self.blank_line)
                found.append((int(start), int(later[0]), content))
        return found

    def answer_start(self, ids: TokenIds) -> int:
        """Return the position after the last header, where the assistant's answer starts.

        Documents cannot contain header tokens, so the last header is the assistant's. Without any header the
        whole prompt is the question.
        """
        headers = self.headers(ids)
        return headers[-1][2] if headers else len(ids)


@dataclass(frozen=True)
class Ask:
    """The values that a request asks for.

    Attributes:
        ids: prompt token ids `[tokens]`.
        max_tokens: the maximum number of output tokens.
        seed: the request's random seed; None if it has none.
        temperature: temperature of the draws; 0 if the request is greedy for any reason: nothing is drawn.
        ends: it names an end token; without one the model never stops by itself.
        stop_words: token sequences after which the answer ends.
        min_tokens: the fewest tokens before an end token.
    """

    ids: TokenIds
    max_tokens: int
    seed: int | None = None
    temperature: float = 0.0
    ends: bool = True
    stop_words: tuple[tuple[int, ...], ...] = ()
    min_tokens: int = 0

    def generator(self) -> Random | None:
        """Create the random generator of this request. Returns None if it is greedy.

        Without a seed it is always the same one, like TensorRT-LLM's.
        """
        return Random(self.seed or 0) if self.temperature else None  # noqa: S311 reproducible on purpose


@dataclass(frozen=True)
class Fault:
    """A failure in place of the token at `index`; with `spreads` all active requests fail too."""

    index: int
    spreads: bool = False


@dataclass(frozen=True)
class Script:
    """A whole answer, starting right after the assistant's header.

    Attributes:
        ids: its tokens; repeated forever if `length` is None.
        length: number of tokens before the end token.
        pauses: seconds of silence by the index of the token that follows.
        fault: a failure to simulate.
        opening: tokens said once before `ids`; they count towards `length`.
    """

    ids: tuple[int, ...]
    length: int | None
    pauses: dict[int, float] = field(default_factory=dict)
    fault: Fault | None = None
    opening: tuple[int, ...] = ()


class Speaker(Protocol):
    """A source of answers, called from one thread."""

    markup: Markup

    def script(self, asked: TokenIds, ask: Ask) -> Script:
        """Write the whole answer to a prompt that ends with the assistant's header."""
        ...


@dataclass(frozen=True)
class Speech:
    """The rest of an answer: a script from the point where the prompt ends.

    Attributes:
        script: the whole answer.
        start: number of its tokens that the prompt already holds.
        stop_at: tokens left up to and including the one that completes a stop word; None if none does.
        ends: the end token stops it.
        min_tokens: not before so many; the script begins again until then.
    """

    script: Script
    start: int
    stop_at: int | None
    ends: bool
    min_tokens: int = 0

    def token(self, index: int) -> int | None:
        """Return the token after `index` others, or None for the end token."""
        place = self.start + index
        length = self.script.length
        if self.ends and length is not None and place >= length and index >= self.min_tokens:
            return None
        opening = self.script.opening
        if place < len(opening):
            return opening[place]
        return self.script.ids[(place - len(opening)) % len(self.script.ids)]

    def pause(self, index: int, rested_at: int) -> float:
        """Return the seconds of silence before this token; 0 if that silence is over."""
        return 0.0 if index == rested_at else self.script.pauses.get(self.start + index, 0.0)

    def fault(self, index: int) -> Fault | None:
        """Return the failure that takes this token's place, or None."""
        fault = self.script.fault
        return fault if fault is not None and fault.index == self.start + index else None


def prepare(speaker: Speaker, ask: Ask) -> Speech:
    """Compute the answer to the prompt up to its last header, less what the prompt holds."""
    boundary = speaker.markup.answer_start(ask.ids)
    script = speaker.script(ask.ids[:boundary], ask)
    start = len(ask.ids) - boundary
    speech = Speech(script=script, start=start, stop_at=None, ends=ask.ends, min_tokens=ask.min_tokens)
    return replace(speech, stop_at=_first_stop(speech, ask)) if ask.stop_words else speech


def _first_stop(speech: Speech, ask: Ask) -> int | None:
    spoken: list[int] = []
    for index in range(ask.max_tokens):
        token = speech.token(index)
        if token is None:
            return None
        spoken.append(token)
        if any(ends_with(spoken, word) for word in ask.stop_words):
            return index + 1
    return None


def ends_with(tokens: Sequence[int], word: tuple[int, ...]) -> bool:
    """Return True if the tokens end with this word. An empty word never matches."""
    return len(word) > 0 and tuple(tokens[-len(word) :]) == word
