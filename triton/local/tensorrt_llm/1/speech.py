"""What a sequence is to say, and where in its prompt the answer begins."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

TokenIds = NDArray[np.int32]


@dataclass(frozen=True)
class Markup:
    """How a chat template marks turns: `<start> role <end> blank line … `; the defaults are Llama 3's ids."""

    start_header: int = 128006
    end_header: int = 128007
    end_of_turn: int = 128009
    blank_line: tuple[int, ...] = (271,)

    def headers(self, ids: TokenIds) -> list[tuple[int, int, int]]:
        """For each turn: where its header starts, where its role's name ends, where its content starts."""
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
        """The position after the last header: what comes there is what the assistant has already said.

        Documents cannot hold header tokens, so the last header is the one that asks the assistant to speak.
        Without any header the whole prompt is the question.
        """
        headers = self.headers(ids)
        return headers[-1][2] if headers else len(ids)


@dataclass(frozen=True)
class Ask:
    """What a request asks for.

    Attributes:
        ids: prompt token ids `[tokens]`.
        max_tokens: output tokens at most.
        seed: the request's random seed, None when it gave none.
        temperature: of the draws; 0 is greedy, whatever the request says: nothing is drawn.
        ends: whether it names an end token; without one the model never stops by itself.
        stop_words: token sequences after which the answer ends.
    """

    ids: TokenIds
    max_tokens: int
    seed: int | None = None
    temperature: float = 0.0
    ends: bool = True
    stop_words: tuple[tuple[int, ...], ...] = ()

    def generator(self) -> Random | None:
        """Make the generator of this request's draws; None: it is greedy.

        Without a seed it is always the same one, as TensorRT-LLM's is.
        """
        return Random(self.seed or 0) if self.temperature else None  # noqa: S311 reproducible on purpose


@dataclass(frozen=True)
class Fault:
    """The request fails instead of saying its token at `index`; `spreads` means all active ones fail too."""

    index: int
    spreads: bool = False


@dataclass(frozen=True)
class Script:
    """A whole answer, from right after the assistant's header.

    Attributes:
        ids: its tokens; repeated for ever where `length` is None.
        length: tokens before the end token.
        pauses: seconds of silence before the token at this index.
        fault: a failure to act out.
    """

    ids: tuple[int, ...]
    length: int | None
    pauses: dict[int, float] = field(default_factory=dict)
    fault: Fault | None = None


class Speaker(Protocol):
    """Decides what is said; called from one thread."""

    markup: Markup

    def script(self, asked: TokenIds, ask: Ask) -> Script:
        """The whole answer to the prompt up to and including the assistant's header."""
        ...


@dataclass(frozen=True)
class Speech:
    """What is left to say: a script from the place where the prompt leaves off.

    Attributes:
        script: the whole answer.
        start: how many of its tokens the prompt already holds.
        stop_at: tokens left until a stop word is complete; that token is said, and is the last. None: never.
        ends: whether the end token stops it.
    """

    script: Script
    start: int
    stop_at: int | None
    ends: bool

    def token(self, index: int) -> int | None:
        """The token to say after `index` others, None for the end token."""
        place = self.start + index
        if self.ends and self.script.length is not None and place >= self.script.length:
            return None
        return self.script.ids[place % len(self.script.ids)]

    def pause(self, index: int, rested_at: int) -> float:
        """Seconds of silence before this token; 0 when it was already preceded by one."""
        return 0.0 if index == rested_at else self.script.pauses.get(self.start + index, 0.0)

    def fault(self, index: int) -> Fault | None:
        """The failure that takes this token's place."""
        fault = self.script.fault
        return fault if fault is not None and fault.index == self.start + index else None


def prepare(speaker: Speaker, ask: Ask) -> Speech:
    """What to say: a function of the prompt up to the last header, continued after what follows it."""
    boundary = speaker.markup.answer_start(ask.ids)
    script = speaker.script(ask.ids[:boundary], ask)
    speech = Speech(script=script, start=len(ask.ids) - boundary, stop_at=None, ends=ask.ends)
    if not ask.stop_words:
        return speech
    return Speech(script, speech.start, _first_stop(speech, ask), ask.ends)


def _first_stop(speech: Speech, ask: Ask) -> int | None:
    said: list[int] = []
    for index in range(ask.max_tokens):
        token = speech.token(index)
        if token is None:
            return None
        said.append(token)
        if any(ends_with(said, word) for word in ask.stop_words):
            return index + 1
    return None


def ends_with(said: Sequence[int], word: tuple[int, ...]) -> bool:
    """Whether the word is the last that was said; an empty one never is."""
    return len(word) > 0 and tuple(said[-len(word) :]) == word
