"""The workloads: seeded lists of jobs with their sizes, templates and arrival times."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

MAX_PROMPT_TOKENS = 96_000


@dataclass(frozen=True, slots=True)
class Spec:
    """One job with its true sizes.

    Attributes:
        prompt_tokens: exact.
        output_tokens: that it will generate; no policy but the oracle sees it.
        max_tokens: allowed by its caller.
        template: kind of task; outputs are predicted per tenant and template.
        tenant: owner of the job.
        arrives_at: seconds after the start.
        document: number of the document that its prompt begins with; None: it shares nothing.
        shared_tokens: length of that document.
    """

    prompt_tokens: int
    output_tokens: int
    max_tokens: int
    template: str
    tenant: str = "one"
    arrives_at: float = 0.0
    document: int | None = None
    shared_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Corpus:
    """A kind of document: means of prompt and output tokens, and the sigmas of their lognormals."""

    template: str
    prompt_mean: float
    prompt_sigma: float
    output_mean: float
    output_sigma: float


# Means as published with the data sets (in tokens), spreads of the usual summarization corpora.
SUMMARIES = (
    Corpus("govreport", 12_500, 0.60, 735, 0.45),
    Corpus("arxiv", 8_000, 0.70, 363, 0.50),
    Corpus("pubmed", 4_060, 0.75, 269, 0.50),
)
# Inverse CDF of the Mooncake conversation trace.
MOON_QUANTILES = (0, 1, 5, 10, 20, 30, 40, 50, 60, 70, 75, 80, 90, 95, 97.5, 99, 99.5, 100)
MOON_PROMPTS = (
    *(891, 894, 901, 964, 1662, 3263, 4993, 6909, 9570, 13196, 15367, 17869),
    *(27367, 39550, 58976, 85400, 100810, 126195),
)
MOON_OUTPUTS = (1, 3, 10, 24, 100, 213, 291, 350, 399, 447, 472, 504, 597, 698, 835, 1118, 1567, 2000)

Maker = Callable[[np.random.Generator, int, int], list[Spec]]


class Arrivals(Protocol):
    """A way to spread the jobs of a workload over time."""

    __name__: str

    def __call__(self, specs: list[Spec], *, seed: int, mean_gap_s: float) -> list[Spec]:
        """Return the same jobs, `mean_gap_s` seconds apart on average."""


def make(name: str, *, seed: int, num_jobs: int, max_tokens: int) -> list[Spec]:
    """Make the named workload's jobs, all at t=0; equal seeds give equal jobs."""
    rng = np.random.default_rng([seed, *name.encode()])
    return WORKLOADS[name](rng, num_jobs, max_tokens)


def mix(rng: np.random.Generator, num_jobs: int, max_tokens: int, *, share_long: float) -> list[Spec]:
    """Mix long books (uniform 32k-96k prompts) with papers of three corpora."""
    specs = []
    for _ in range(num_jobs):
        if rng.random() < share_long:
            prompt = int(rng.integers(32_000, MAX_PROMPT_TOKENS, endpoint=True))
            specs.append(_spec("long", prompt, rng.lognormal(np.log(1000), 0.4), max_tokens))
        else:
            corpus = SUMMARIES[rng.integers(len(SUMMARIES))]
            prompt = int(_lognormal(rng, corpus.prompt_mean, corpus.prompt_sigma))
            output = _lognormal(rng, corpus.output_mean, corpus.output_sigma)
            specs.append(_spec(corpus.template, prompt, output, max_tokens))
    return specs


def moon(rng: np.random.Generator, num_jobs: int, max_tokens: int) -> list[Spec]:
    """Make conversations: input and output independent, each by its inverse CDF."""
    prompts = np.interp(rng.uniform(0, 100, num_jobs), MOON_QUANTILES, MOON_PROMPTS)
    outputs = np.interp(rng.uniform(0, 100, num_jobs), MOON_QUANTILES, MOON_OUTPUTS)
    return [
        _spec("chat", int(prompt), float(output), max_tokens)
        for prompt, output in zip(prompts, outputs, strict=True)
    ]


def tiny(_rng: np.random.Generator, num_jobs: int, max_tokens: int) -> list[Spec]:
    """Make jobs of one size that are nothing but overhead."""
    return [_spec("tiny", 4_000, 256, max_tokens)] * num_jobs


def small(rng: np.random.Generator, num_jobs: int, max_tokens: int) -> list[Spec]:
    """Make small jobs whose slots become free one by one, unlike those of TINY."""
    return [
        _spec("small", int(rng.integers(2_000, 6_000)), _lognormal(rng, 256, 0.5), max_tokens)
        for _ in range(num_jobs)
    ]


def reason(rng: np.random.Generator, num_jobs: int, max_tokens: int) -> list[Spec]:
    """Make long answers of unknown length to prompts of one size."""
    return [
        _spec("reason", 24_000, _lognormal(rng, 5_000, REASON_SIGMA), max_tokens) for _ in range(num_jobs)
    ]


def starve(rng: np.random.Generator, num_jobs: int, max_tokens: int) -> list[Spec]:
    """Make a stream of small jobs that starves the few large ones if unfair."""
    specs = []
    for _ in range(num_jobs):
        low, high = (90_000, MAX_PROMPT_TOKENS) if rng.random() < 0.04 else (24_000, 30_000)
        prompt = int(rng.integers(low, high, endpoint=True))
        specs.append(_spec("starve", prompt, _lognormal(rng, 735, 0.45), max_tokens))
    return specs


# Of the long answers; with it, reserving max_tokens and EASY reach .68 and .87 of the lower bound.
REASON_SIGMA = 0.6
BURST = 20  # jobs
WORKLOADS: dict[str, Maker] = {
    "MIX-20": partial(mix, share_long=0.2),
    "MIX-40": partial(mix, share_long=0.4),
    "MOON": moon,
    "TINY": tiny,
    "SMALL": small,
    "REASON": reason,
    "STARVE": starve,
}


def poisson(specs: list[Spec], *, seed: int, mean_gap_s: float) -> list[Spec]:
    """Let the jobs arrive one by one at random, `mean_gap_s` seconds apart on average."""
    gaps = np.random.default_rng([seed, 1]).exponential(mean_gap_s, len(specs))
    return _arriving(specs, np.cumsum(gaps))


def bursty(specs: list[Spec], *, seed: int, mean_gap_s: float) -> list[Spec]:
    """Let the jobs arrive at the same average rate in bursts of `BURST`."""
    num_bursts = -(-len(specs) // BURST)
    gaps = np.random.default_rng([seed, 2]).exponential(mean_gap_s * BURST, num_bursts)
    return _arriving(specs, np.repeat(np.cumsum(gaps), BURST)[: len(specs)])


def _arriving(specs: list[Spec], times: NDArray[np.float64]) -> list[Spec]:
    return [replace(spec, arrives_at=float(at)) for spec, at in zip(specs, times, strict=True)]


def _lognormal(rng: np.random.Generator, mean: float, sigma: float) -> float:
    return float(rng.lognormal(np.log(mean) - sigma**2 / 2, sigma))


def _spec(template: str, prompt: int, output: float, max_tokens: int) -> Spec:
    return Spec(
        prompt_tokens=min(max(prompt, 64), MAX_PROMPT_TOKENS),
        output_tokens=min(max(round(output), 1), max_tokens),
        max_tokens=max_tokens,
        template=template,
    )
