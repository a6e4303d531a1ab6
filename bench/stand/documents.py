"""Distinct prompts with an exact number of tokens whose answers have an exact number, too."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bench.simulation.workloads import Spec
from jobs.prompts.messages import Message
from jobs.prompts.tokenizer import TokenIds, Tokenizer

_NUM_WORDS = 2048  # distinct words of four characters with their space, like an English token
_FIRST_WORD_IDS = 20_000  # common tokens come first in a vocabulary


@dataclass(frozen=True, slots=True)
class Prompt:
    """One job's prompt.

    Attributes:
        text: as a caller of the product sends it.
        ids: as the engine gets it, chat template included.
        spec: its sizes; the end token counts as the last of the output, since it takes an iteration too.
    """

    text: str
    ids: TokenIds
    spec: Spec

    @property
    def answer_tokens(self) -> int:
        """Tokens of the answer without its end token, as the local engine in synthetic mode generates it."""
        return answer_tokens(self.spec)


@dataclass(frozen=True)
class Author:
    """Writes prompts from words that are one token each; those about one document begin alike."""

    tokenizer: Tokenizer

    def write(self, specs: list[Spec], *, seed: int) -> list[Prompt]:
        """Write one prompt for each spec; equal seeds give equal prompts.

        Raises:
            ValueError: a spec asks for a prompt that is shorter than its markup.
        """
        rng = np.random.default_rng([seed, len(specs)])
        return [self._prompt(spec, rng, seed) for spec in specs]

    @property
    def word_ids(self) -> list[int]:
        """Return the ids of the words that prompts consist of."""
        return [int(each) for each in self._words[1]]

    @property
    def num_ids_after_mark(self) -> int:
        """Count the ids that the template puts after the mark of an answer's length."""
        mark = " [[tokens=1234]]"
        return len(self._around(mark)[1]) - len(self.tokenizer.encode_text(mark))

    def _prompt(self, spec: Spec, rng: np.random.Generator, seed: int) -> Prompt:
        mark = f" [[tokens={answer_tokens(spec)}]]"
        words, word_ids = self._words
        head, tail = self._around(mark)
        num_words = spec.prompt_tokens - len(head) - len(tail)
        if num_words < 1:
            raise ValueError(f"a prompt of {spec.prompt_tokens} tokens is too short for its markup")
        chosen = rng.integers(len(words), size=num_words)
        if spec.document is not None:
            shared = np.random.default_rng([seed, spec.document, *b"document"])
            length = spec.shared_tokens - len(head)
            chosen[:length] = shared.integers(len(words), size=length)
        text = "".join([words[place] for place in chosen]) + mark
        return Prompt(text, np.concatenate([head, word_ids[chosen], tail]), spec)

    def _around(self, mark: str) -> tuple[TokenIds, TokenIds]:
        """Return the ids that the template puts before and after the words."""
        words, word_ids = self._words
        ids = self.tokenizer.encode_messages([Message("user", words[0] + mark)])
        (place,) = np.flatnonzero(ids == word_ids[0])[:1]
        return ids[:place], ids[place + 1 :]

    @cached_property
    def _words(self) -> tuple[list[str], TokenIds]:
        """Words with a leading space, and their ids: lower-case tokens that survive a round trip."""
        texts = {token_id: self.tokenizer.decode([token_id]) for token_id in range(_FIRST_WORD_IDS)}
        words = {
            text: token_id
            for token_id, text in texts.items()
            if 3 <= len(text) <= 5 and text[0] == " " and text[1:].isascii() and text[1:].islower()
        }
        ids = np.array(list(words.values()), dtype=np.int32)
        found = self.tokenizer.encode_text("".join(words))
        if found.tolist() != ids.tolist():
            raise ValueError("the tokenizer does not encode its own words to the same ids")
        return list(words)[:_NUM_WORDS], ids[:_NUM_WORDS]


def answer_tokens(spec: Spec) -> int:
    """Return the answer's length without the end token; at least one."""
    return max(1, spec.output_tokens - 1)
