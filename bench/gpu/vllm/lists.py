"""Seeded lists of jobs for one GPU, written as `KIND:SEED[:JOBS]`."""

from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np

from bench.simulation.shared_documents import ask
from bench.simulation.workloads import MAX_PROMPT_TOKENS, Spec, make

MAX_TOKENS: Final = 2048  # that every caller allows
_DOCUMENT_TOKENS: Final = 30_000
_QUESTIONS: Final = 6  # about each document
_ANSWER_TOKENS: Final = 32
# Jobs of each kind unless the list says otherwise; for QUESTIONS, documents.
_SIZES: Final = {"MIX": 24, "QUESTIONS": 12, "SMALL-GPU": 2000, "DECODE": 1200, "REPORTS": 200}


@dataclass(frozen=True, slots=True)
class Listing:
    """One list of jobs.

    Attributes:
        kind: MIX (MIX-20 with one longest prompt), QUESTIONS (about documents of 30,000 tokens, question
            by question), SMALL-GPU (1,000 tokens in, 64 out), DECODE (200 in, about 256 out), or REPORTS
            (1,000 in, about 800 out: jobs that grow while they run).
        seed: equal seeds give equal lists.
        size: jobs; for QUESTIONS, documents.
    """

    kind: str
    seed: int
    size: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `KIND:SEED[:JOBS]`.

        Raises:
            ValueError: there is no such kind, or a number is not one.
        """
        kind, seed, *size = text.split(":")
        if kind not in _SIZES:
            raise ValueError(f"unknown list {kind!r}; there are: {', '.join(_SIZES)}")
        return cls(kind, int(seed), int(size[0]) if size else _SIZES[kind])

    def __str__(self) -> str:
        return f"{self.kind}:{self.seed}:{self.size}"

    def specs(self) -> list[Spec]:
        """Make the jobs."""
        match self.kind:
            case "MIX":
                return _mix(self.seed, self.size)
            case "QUESTIONS":
                return _questions(self.seed, self.size)
            case "SMALL-GPU":
                return [Spec(1000, 64, MAX_TOKENS, "small")] * self.size
            case "REPORTS":
                return _generating(self.seed, self.size, prompt_tokens=1000, mean=800, template="report")
            case _:
                return _generating(self.seed, self.size, prompt_tokens=200, mean=256, template="decode")


def _mix(seed: int, size: int) -> list[Spec]:
    specs = make("MIX-20", seed=seed, num_jobs=size, max_tokens=MAX_TOKENS)
    longest = max(range(size), key=lambda place: specs[place].prompt_tokens)
    specs[longest] = replace(specs[longest], prompt_tokens=MAX_PROMPT_TOKENS)
    return specs


def _questions(seed: int, num_documents: int) -> list[Spec]:
    asked = ask(
        seed=seed,
        document_tokens=_DOCUMENT_TOKENS,
        num_documents=num_documents,
        num_questions=_QUESTIONS,
        max_tokens=MAX_TOKENS,
    )
    return [replace(each, output_tokens=_ANSWER_TOKENS) for each in asked]


def _generating(seed: int, size: int, *, prompt_tokens: int, mean: int, template: str) -> list[Spec]:
    """Make jobs whose answers have lognormal lengths around the mean."""
    rng = np.random.default_rng([seed, *b"DECODE"])
    sigma = 0.5
    lengths = rng.lognormal(np.log(mean) - sigma**2 / 2, sigma, size)
    return [
        Spec(prompt_tokens, int(np.clip(round(each), 8, MAX_TOKENS - 48)), MAX_TOKENS, template)
        for each in lengths
    ]
